// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package kit has what the reconcilers of virt-controller have in common. A reconciler reads objects, decides by pure
// functions, applies the decision, and writes the status of its object last. It uses the kit for each of these steps,
// and writes none of them itself:
//
//	SetupWithManager   Fair (a queue in which namespaces take turns), AddIndexes,
//	                   predicates such as Updates and Objects,
//	                   OnConfig and OnSettings (changes of the configuration),
//	                   outcome.Complete instead of Complete
//	read               Run (the object of a request), Read (the cache, then the API server), Claims,
//	                   Requests, EachMetadata and EachPage (lists), AbandonedVMs, Now
//	apply              Patch (metadata), AddFinalizer and RemoveFinalizer, Delete, CreatePod,
//	                   InBatches and CreateInBatches (many objects)
//	status             SetFailure (the condition of what went wrong),
//	                   WriteStatus (one patch if something has changed, then the events),
//	                   RecordFailure (the events of a failure that is new)
//	result             outcome.Result, once, at the end of Reconcile
//
// A phase that fails returns an error, and one that only waits an outcome.Wait or outcome.Requeue. Package outcome says
// what follows if several phases end differently. A phase that needs another reconciliation at some time, but does not
// end this one, requests it in the scope: s.requeueAfter = outcome.Sooner(s.requeueAfter, delay). Reconcile passes it
// to outcome.Result, whatever the phases have returned:
//
//	s := &scope{Reconciler: r, now: kit.Now(r.Clock)}
//	err := kit.Run(ctx, r.Client, request.NamespacedName, &s.clone, s.run)
//	return outcome.Result(ctx, err, s.requeueAfter)
//
// The run of a kind has the order of its phases. ADR 115 has the reasons.
//
// A conflict needs no care: Patch and WriteStatus send the version that was read, the API server refuses an outdated
// one, and the next reconciliation starts from the new one. An object that is gone is an error that
// client.IgnoreNotFound ignores. Failures that users see are those of outcome.Failure, which are no conflicts.
//
// The status of VMIs has several writers, so vmistatus.Patch writes it.
package kit
