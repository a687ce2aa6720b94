// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package e2e

import (
	"context"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/onsi/gomega/gbytes"
	"github.com/onsi/gomega/gexec"
	"github.com/prometheus/client_golang/api"
	promv1 "github.com/prometheus/client_golang/api/prometheus/v1"
	"github.com/prometheus/common/model"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/yaml"

	"github.com/vireo-project/vireo/internal/controller/install/kubevirt/rules"
)

// How often Prometheus scrapes the components and evaluates the rules.
const (
	scrapeInterval     = "2s"
	evaluationInterval = "1s"
)

// prometheusServer is a Prometheus on this host, which has routes to all Pods of the local cluster.
type prometheusServer struct{ promv1.API }

// startPrometheus runs Prometheus with a scrape configuration and rules until the spec ends.
func startPrometheus(ctx context.Context, scrape map[string]any, file *rules.File) prometheusServer {
	GinkgoHelper()
	program := os.Getenv("VIREO_PROMETHEUS")
	Expect(program).NotTo(BeEmpty(), "VIREO_PROMETHEUS must name the program prometheus; `make test-e2e` builds it and sets it")
	directory := GinkgoT().TempDir()
	for name, content := range map[string]any{
		"rules.yaml": file,
		"prometheus.yaml": map[string]any{
			"global": map[string]any{
				"scrape_interval": scrapeInterval, "scrape_timeout": scrapeInterval, "evaluation_interval": evaluationInterval,
			},
			"rule_files": []string{"rules.yaml"}, "scrape_configs": []any{scrape},
		},
	} {
		text, err := yaml.Marshal(content)
		Expect(err).NotTo(HaveOccurred())
		Expect(os.WriteFile(filepath.Join(directory, name), text, 0o600)).To(Succeed())
	}
	command := exec.Command(program, "--config.file=prometheus.yaml", "--storage.tsdb.path=data",
		"--web.listen-address=127.0.0.1:0")
	command.Dir = directory
	session, err := gexec.Start(command, GinkgoWriter, GinkgoWriter)
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(func() { session.Kill().Wait(shortTimeout) })
	listening := regexp.MustCompile(`msg="Listening on".* address=(\S+)\n`)
	Eventually(session.Err).WithContext(ctx).WithTimeout(shortTimeout).Should(gbytes.Say(listening.String()))
	client, err := api.NewClient(
		api.Config{Address: "http://" + string(listening.FindSubmatch(session.Err.Contents())[1])})
	Expect(err).NotTo(HaveOccurred())
	return prometheusServer{promv1.NewAPI(client)}
}

// query returns the samples of an expression now.
func (p prometheusServer) query(ctx context.Context, g Gomega, expr string) model.Vector {
	value, _, err := p.Query(ctx, expr, time.Now())
	g.Expect(err).NotTo(HaveOccurred(), expr)
	g.Expect(value).To(BeAssignableToTypeOf(model.Vector{}), expr)
	vector, _ := value.(model.Vector)
	return slices.DeleteFunc(vector, func(s *model.Sample) bool { return math.IsNaN(float64(s.Value)) })
}

// hasSeries reports whether a metric has had a series since Prometheus was started.
func (p prometheusServer) hasSeries(ctx context.Context, g Gomega, metric string) bool {
	return len(p.query(ctx, g, "last_over_time("+metric+"[1h])")) > 0
}

// firing returns the alerts that fire now, as NAME/SEVERITY, followed by the name of the VM if the alert is about one.
func (p prometheusServer) firing(ctx context.Context, g Gomega) []string {
	all, err := p.Alerts(ctx)
	g.Expect(err).NotTo(HaveOccurred())
	var firing []string
	for _, alert := range all.Alerts {
		if alert.State == promv1.AlertStateFiring {
			name := fmt.Sprintf("%s/%s %s", alert.Labels[model.AlertNameLabel], alert.Labels["severity"], alert.Labels["name"])
			firing = append(firing, strings.TrimSpace(name))
		}
	}
	return firing
}

// scraped returns the names of the Pods whose last scrape has succeeded.
func (p prometheusServer) scraped(ctx context.Context, g Gomega) []string {
	targets, err := p.Targets(ctx)
	g.Expect(err).NotTo(HaveOccurred())
	var pods []string
	for i := range targets.Active {
		if targets.Active[i].Health == promv1.HealthGood {
			pods = append(pods, string(targets.Active[i].Labels["pod"]))
		}
	}
	return pods
}

// evaluated returns how many rules were evaluated without an error, and the errors of the others.
func (p prometheusServer) evaluated(ctx context.Context, g Gomega) (good int, errors []string) {
	all, err := p.Rules(ctx, nil)
	g.Expect(err).NotTo(HaveOccurred())
	count := func(name, problem string, health promv1.RuleHealth) {
		switch {
		case health == promv1.RuleHealthGood:
			good++
		case problem != "":
			errors = append(errors, name+": "+problem)
		}
	}
	for _, group := range all.Groups {
		for _, rule := range group.Rules {
			switch rule := rule.(type) {
			case promv1.RecordingRule:
				count(rule.Name, rule.LastError, rule.Health)
			case promv1.AlertingRule:
				count(rule.Name, rule.LastError, rule.Health)
			}
		}
	}
	return good, errors
}

// monitorSpec is the part of a ServiceMonitor that is translated. Any other field is an error.
type monitorSpec struct {
	Selector struct {
		MatchLabels map[string]string `json:"matchLabels"`
	} `json:"selector"`
	NamespaceSelector struct {
		MatchNames []string `json:"matchNames"`
	} `json:"namespaceSelector"`
	Endpoints []struct {
		Port        string `json:"port"`
		Scheme      string `json:"scheme"`
		HonorLabels bool   `json:"honorLabels"`
		TLSConfig   struct {
			InsecureSkipVerify bool `json:"insecureSkipVerify"`
		} `json:"tlsConfig"`
	} `json:"endpoints"`
}

// scrapeConfig translates a ServiceMonitor with one endpoint, as the Prometheus operator does. Prometheus finds the
// Pods as the user of a kubeconfig.
func scrapeConfig(monitor *monitorSpec, kubeconfig string) map[string]any {
	GinkgoHelper()
	Expect(monitor.Endpoints).To(HaveLen(1))
	endpoint := &monitor.Endpoints[0]
	keep := func(label, value string) map[string]any {
		return map[string]any{"action": "keep", "source_labels": []string{"__meta_kubernetes_" + label},
			"regex": regexp.QuoteMeta(value)}
	}
	relabel := []any{keep("endpoint_port_name", endpoint.Port),
		map[string]any{"target_label": "endpoint", "replacement": endpoint.Port}}
	for label, value := range monitor.Selector.MatchLabels {
		relabel = append(relabel, keep("service_label_"+regexp.MustCompile(`[^a-zA-Z0-9_]`).ReplaceAllString(label, "_"), value))
	}
	for source, target := range map[string]string{
		"namespace": "namespace", "service_name": "service", "pod_name": "pod", "pod_container_name": "container",
	} {
		relabel = append(relabel,
			map[string]any{"source_labels": []string{"__meta_kubernetes_" + source}, "target_label": target})
	}
	return map[string]any{
		"job_name": "serviceMonitor", "scheme": endpoint.Scheme, "honor_labels": endpoint.HonorLabels,
		"tls_config": map[string]any{"insecure_skip_verify": endpoint.TLSConfig.InsecureSkipVerify},
		"kubernetes_sd_configs": []any{map[string]any{
			"role": "endpoints", "kubeconfig_file": kubeconfig, "namespaces": map[string]any{"names": monitor.NamespaceSelector.MatchNames},
		}},
		"relabel_configs": relabel,
	}
}

// accountKubeconfig creates a service account without any right, and returns the path of a kubeconfig with its token.
func accountKubeconfig(ctx context.Context, namespace, name string) string {
	GinkgoHelper()
	create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}})
	token, err := clientset.CoreV1().ServiceAccounts(namespace).CreateToken(ctx, name, &authenticationv1.TokenRequest{},
		metav1.CreateOptions{})
	Expect(err).NotTo(HaveOccurred())
	server := rest.CopyConfig(restConfig)
	Expect(rest.LoadTLSFiles(server)).To(Succeed())
	config := clientcmdapi.NewConfig()
	config.Clusters["it"] = &clientcmdapi.Cluster{Server: server.Host, CertificateAuthorityData: server.CAData}
	config.AuthInfos["it"] = &clientcmdapi.AuthInfo{Token: token.Status.Token}
	config.Contexts["it"] = &clientcmdapi.Context{Cluster: "it", AuthInfo: "it"}
	config.CurrentContext = "it"
	path := filepath.Join(GinkgoT().TempDir(), "kubeconfig")
	Expect(clientcmd.WriteToFile(*config, path)).To(Succeed())
	return path
}
