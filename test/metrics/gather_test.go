// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package metrics_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"reflect"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	snapshotv1beta1 "github.com/vireo-project/vireo/api/snapshot/v1beta1"
	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/agent/guestmetrics"
	"github.com/vireo-project/vireo/internal/agent/hypervisor"
	"github.com/vireo-project/vireo/internal/agent/migrate"
	"github.com/vireo-project/vireo/internal/apiserver/stream"
	"github.com/vireo-project/vireo/internal/certificate"
	"github.com/vireo-project/vireo/internal/clusterconfig"
	"github.com/vireo-project/vireo/internal/component/metrics"
	"github.com/vireo-project/vireo/internal/controller/observe/monitoring"
	"github.com/vireo-project/vireo/test/builder"
)

func yes() bool { return true }

// gathered are the metrics of all components, each with at least one sample.
var gathered = sync.OnceValues(func() ([]*dto.MetricFamily, error) {
	syncs := &metrics.Syncs{Exists: func(context.Context, types.NamespacedName) bool { return true }}
	collectors := []prometheus.Collector{
		syncs, controllerCollector(), agentCollector(), waitingCollector(),
		migrate.NewTransfers(migrate.Options{}).Metrics("node"),
		&guestmetrics.PanicCollector{Counts: func() map[types.NamespacedName]uint64 {
			return map[types.NamespacedName]uint64{{Namespace: "ns", Name: "vm"}: 1}
		}},
	}
	for _, list := range [][]prometheus.Collector{
		monitoring.Process(yes, yes, yes), monitoring.NewTransitions(nil).Collectors(),
		guestmetrics.Node("node", []string{"pc-1.0"}, yes, yes), stream.Collectors(yes),
	} {
		collectors = append(collectors, list...)
	}
	useClient()
	useQueue(syncs)
	gatherer, err := metrics.Gatherer(metrics.Options{Collectors: collectors})
	if err != nil {
		return nil, err
	}
	for _, c := range collectors {
		touch(c)
	}
	families, err := gatherer.Gather()
	return append(families, described(collectors, families)...), err
})

func gather(t *testing.T) []*dto.MetricFamily {
	t.Helper()
	families, err := gathered()
	if err != nil {
		t.Fatal(err)
	}
	return families
}

// useClient makes a request to an API server, which fails.
func useClient() {
	server := httptest.NewServer(http.NotFoundHandler())
	defer server.Close()
	config := &rest.Config{Host: server.URL, APIPath: "/api", QPS: 1000, Burst: 1000, ContentConfig: rest.ContentConfig{
		GroupVersion: &corev1.SchemeGroupVersion, NegotiatedSerializer: scheme.Codecs.WithoutConversion(),
	}}
	metrics.CountRequests(config)
	if c, err := rest.RESTClientFor(config); err == nil {
		_ = c.Get().Resource("pods").Do(context.Background()).Error()
	}
}

// useQueue reconciles a VMI through a work queue.
func useQueue(syncs *metrics.Syncs) {
	queue := workqueue.NewTypedRateLimitingQueueWithConfig(
		workqueue.DefaultTypedControllerRateLimiter[reconcile.Request](),
		workqueue.TypedRateLimitingQueueConfig[reconcile.Request]{Name: "virtualmachineinstance"})
	defer queue.ShutDown()
	queue.AddRateLimited(reconcile.Request{NamespacedName: types.NamespacedName{Namespace: "ns", Name: "vm"}})
	request, _ := queue.Get()
	_, _ = syncs.Wrap(reconcile.Func(func(context.Context, reconcile.Request) (reconcile.Result, error) {
		return reconcile.Result{}, nil
	})).Reconcile(context.Background(), request)
	queue.Done(request)
}

// description are the parts of a metric's description, which client_golang does not export.
var description = regexp.MustCompile(`fqName: "([^"]+)", help: "((?:[^"\\]|\\.)*)",(?: unit: "[^"]*",)? constLabels: \{[^}]*\}, variableLabels: \{([^}]*)\}`)

// touch makes a sample of a collector that has none yet because nothing has happened.
func touch(c prometheus.Collector) {
	if _, isVector := c.(interface{ Reset() }); !isVector {
		return
	}
	descs := make(chan *prometheus.Desc, 1)
	c.Describe(descs)
	labels := strings.Split(description.FindStringSubmatch((<-descs).String())[3], ",")
	in := make([]reflect.Value, len(labels))
	for i := range in {
		in[i] = reflect.ValueOf("x")
	}
	reflect.ValueOf(c).MethodByName("WithLabelValues").Call(in)
}

// described returns the metrics that collectors describe and have no sample of: those of migrations, which only a
// transfer has. Their type follows from their name, and internal/agent/migrate compares it.
func described(collectors []prometheus.Collector, families []*dto.MetricFamily) []*dto.MetricFamily {
	known := map[string]bool{}
	for _, family := range families {
		known[family.GetName()] = true
	}
	var more []*dto.MetricFamily
	for _, c := range collectors {
		descs := make(chan *prometheus.Desc, 100)
		c.Describe(descs)
		close(descs)
		for d := range descs {
			m := description.FindStringSubmatch(d.String())
			if known[m[1]] {
				continue
			}
			kind := dto.MetricType_GAUGE
			if strings.HasSuffix(m[1], "_total") {
				kind = dto.MetricType_COUNTER
			}
			metric := &dto.Metric{}
			for label := range strings.SplitSeq(m[3], ",") {
				metric.Label = append(metric.Label, &dto.LabelPair{Name: ptr.To(label), Value: ptr.To("x")})
			}
			more = append(more, &dto.MetricFamily{Name: &m[1], Help: &m[2], Type: &kind, Metric: []*dto.Metric{metric}})
		}
	}
	return more
}

// world is a cache with one object of each kind.
type world struct{ client.Reader }

func (world) List(_ context.Context, list client.ObjectList, _ ...client.ListOption) error {
	now := metav1.NewTime(time.Unix(1000, 0))
	switch list := list.(type) {
	case *snapshotv1beta1.VirtualMachineSnapshotList:
		list.Items = []snapshotv1beta1.VirtualMachineSnapshot{{Status: &snapshotv1beta1.VirtualMachineSnapshotStatus{
			Phase: snapshotv1beta1.Succeeded, CreationTime: &metav1.Time{},
		}}}
	case *v1.VirtualMachineList:
		list.Items = []v1.VirtualMachine{*builder.MakeVM("vm").Namespace("ns").Label("app", "web").
			Template(builder.MakeVMI("").Masquerade().PVC("root", "claim").Guest("1Gi").Limit(corev1.ResourceMemory,
				"2Gi")).Obj()}
	case *v1.VirtualMachineInstanceList:
		list.Items = []v1.VirtualMachineInstance{*builder.MakeVMI("vm").Namespace("ns").Masquerade().With(
			func(vmi *v1.VirtualMachineInstance) {
				vmi.Status.Phase, vmi.Status.NodeName = v1.Running, "node"
				vmi.Status.Interfaces = []v1.VirtualMachineInstanceNetworkInterface{{Name: "default", IP: "10.0.0.1"}}
				vmi.Status.MigrationState = &v1.VirtualMachineInstanceMigrationState{StartTimestamp: &now, EndTimestamp: &now}
			}).Obj()}
	case *v1.VirtualMachineInstanceMigrationList:
		list.Items = []v1.VirtualMachineInstanceMigration{
			*builder.MakeMigration("good", "vm").Namespace("ns").Phase(v1.MigrationSucceeded, now.Time).Obj(),
			*builder.MakeMigration("bad", "vm").Namespace("ns").Phase(v1.MigrationFailed, now.Time).Obj(),
		}
	case *corev1.PersistentVolumeClaimList:
		claim := builder.MakePVC("claim").Namespace("ns").Block().Obj()
		claim.Spec.Resources.Requests = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}
		list.Items = []corev1.PersistentVolumeClaim{*claim}
	case *corev1.SecretList:
		list.Items = []corev1.Secret{{ObjectMeta: metav1.ObjectMeta{Name: certificate.APIClient.AuthoritySecret()}}}
	case *metav1.PartialObjectMetadataList:
		list.Items = []metav1.PartialObjectMetadata{{ObjectMeta: metav1.ObjectMeta{Name: "node"}}}
	}
	return nil
}

func controllerCollector() prometheus.Collector {
	leading := make(chan struct{})
	close(leading)
	return &monitoring.Collector{Reader: world{}, Elected: leading, Config: clusterconfig.Default,
		Labels: monitoring.Labels(metrics.NewLabelFilter())}
}

// waitingCollector returns the collector of an agent with a guest that waits for everything.
func waitingCollector() prometheus.Collector {
	return &guestmetrics.WaitingCollector{Node: "node", Clock: clock.RealClock{}, Guests: func() []guestmetrics.Waiting {
		return []guestmetrics.Waiting{{VMI: types.NamespacedName{Namespace: "ns", Name: "vm"}, Thaw: time.Unix(1000, 0),
			Owner: true}}
	}}
}

// agentCollector returns the collector of an agent with one guest, of which libvirt reports everything.
func agentCollector() prometheus.Collector {
	guest := &guestmetrics.Guest{
		Pod:    hypervisor.PodRef{UID: "pod", VMI: types.NamespacedName{Namespace: "ns", Name: "vm"}},
		Labels: map[string]string{"app": "web"}, NICs: map[string]string{"tap0": "default"},
		Disks: map[string]string{"vda": "root"}, Affinity: 1, VCPUs: 1,
	}
	return guestmetrics.New(guestmetrics.Options{
		Node: "node", Guests: func() []*guestmetrics.Guest { return []*guestmetrics.Guest{guest} },
		Labels: metrics.NewLabelFilter(),
		Read:   func(context.Context, *guestmetrics.Guest, bool) (*hypervisor.Stats, error) { return everything(), nil },
		Usage: func(*guestmetrics.Guest) *hypervisor.GuestUsage {
			u := hypervisor.NewGuestUsage(time.Now(),
				[]hypervisor.GuestFilesystem{{Name: "vda1", Mountpoint: "/", Type: "ext4"}})
			u.Load = &[3]float64{}
			return u
		},
	})
}

func everything() *hypervisor.Stats {
	s := &hypervisor.Stats{}
	for name := range strings.FieldsSeq(`cpu.time cpu.user cpu.system dirtyrate.megabytes_per_second
		balloon.current balloon.rss balloon.available balloon.unused balloon.usable balloon.disk_caches
		balloon.swap_in balloon.swap_out balloon.major_fault balloon.minor_fault
		vcpu.0.state vcpu.0.time vcpu.0.wait vcpu.0.delay
		net.0.rx.bytes net.0.rx.pkts net.0.rx.errs net.0.rx.drop net.0.tx.bytes net.0.tx.pkts net.0.tx.errs net.0.tx.drop
		block.0.rd.reqs block.0.rd.bytes block.0.rd.times block.0.wr.reqs block.0.wr.bytes block.0.wr.times
		block.0.fl.reqs block.0.fl.times`) {
		s.Add(name, 1, "")
	}
	s.Add("net.0.name", 0, "tap0")
	s.Add("block.0.name", 0, "vda")
	return s
}
