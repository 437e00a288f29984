package kube

import (
	"slices"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	fencingv1 "belay.dev/belay/api/fencing/v1alpha1"
)

// The contract of node-healthcheck-operator (NHC) with a remediator. Its constants are in medik8s/common v1.17.0; docs/nodehealthcheck.md has all of it.
const (
	// NodeNameAnnotation on a remediation names the node (pkg/annotations/annotations.go:12).
	NodeNameAnnotation = "remediation.medik8s.io/node-name"
	// TimedOutAnnotation on a remediation says that NHC continues with another remediator (pkg/annotations/annotations.go:5).
	TimedOutAnnotation = "remediation.medik8s.io/nhc-timed-out"
	// ExcludeLabel on a Node, with the value "true", keeps it from being remediated (pkg/labels/labels.go:13).
	ExcludeLabel = "remediation.medik8s.io/exclude-from-remediation"
	// RemediationFinalizer keeps a BelayRemediation while it asks for a fence, and until that fence is over.
	RemediationFinalizer = "fencing.belay.dev/remediation"

	// ConditionProcessing is True while belay works on a remediation (pkg/conditions/conditions.go:8).
	ConditionProcessing = "Processing"
	// ConditionSucceeded is True once the volumes have moved, and False where belay can do nothing (pkg/conditions/conditions.go:10).
	ConditionSucceeded = "Succeeded"
	// ConditionNodeDeletionExpected is always False: belay deletes no Node (pkg/conditions/conditions.go:12).
	ConditionNodeDeletionExpected = "PermanentNodeDeletionExpected"
)

// RemediatedNode is the node that a remediation is about: the name of the object counts only where the annotation is missing (node-healthcheck-operator
// v0.12.0 internal/controller/utils/utils.go:205-214), because NHC generates it where a template allows several of its kind.
func RemediatedNode(r *fencingv1.BelayRemediation) string {
	if node, ok := r.Annotations[NodeNameAnnotation]; ok {
		return node
	}
	return r.Name
}

// RemediationAsks reports whether a remediation asks for a fence: it was accepted, and is neither withdrawn nor timed out.
func RemediationAsks(r *fencingv1.BelayRemediation) bool {
	return r.DeletionTimestamp == nil && !RemediationTimedOut(r) && slices.Contains(r.Finalizers, RemediationFinalizer)
}

// RemediationTimedOut reports whether NHC continues with another remediator.
func RemediationTimedOut(r *fencingv1.BelayRemediation) bool {
	_, timedOut := r.Annotations[TimedOutAnnotation]
	return timedOut
}

// RemediationLeaseHolders are the holders of a node's lease for whom a remediation is made: the health checks that own it (node-healthcheck-operator v0.12.0
// internal/controller/nodehealthcheck_controller.go:154, machinehealthcheck_controller.go:163).
func RemediationLeaseHolders(r *fencingv1.BelayRemediation) (holders []string) {
	for _, owner := range r.OwnerReferences {
		if owner.Kind == "NodeHealthCheck" || owner.Kind == "MachineHealthCheck" {
			holders = append(holders, owner.Kind+"-"+owner.Name)
		}
	}
	return holders
}

// NodeLeaseName is the name of the Lease by which medik8s' operators agree on who works on a node (medik8s/common v1.17.0 pkg/lease/manager.go:311).
func NodeLeaseName(node string) string { return "node-" + node }

// NodeLeaseHolder is who holds such a lease; empty if it has expired (medik8s/common v1.17.0 pkg/lease/manager.go:278-290). That of another clock may
// be renewed in the future, by a minute at most.
func NodeLeaseHolder(lease *coordinationv1.Lease, now time.Time) string {
	s := lease.Spec
	if s.RenewTime == nil || s.LeaseDurationSeconds == nil || s.RenewTime.After(now.Add(time.Minute)) ||
		s.RenewTime.Add(time.Duration(*s.LeaseDurationSeconds)*time.Second).Before(now) {
		return ""
	}
	if s.HolderIdentity == nil || *s.HolderIdentity == "" {
		return "unknown"
	}
	return *s.HolderIdentity
}

// HoldNodeLease writes a holder into the lease of a node.
func HoldNodeLease(lease *coordinationv1.Lease, holder string, now time.Time, duration time.Duration) {
	at, seconds := metav1.NewMicroTime(now), int32(duration/time.Second)
	if s := &lease.Spec; s.HolderIdentity == nil || *s.HolderIdentity != holder || s.AcquireTime == nil {
		s.HolderIdentity, s.AcquireTime = &holder, &at
	}
	lease.Spec.RenewTime, lease.Spec.LeaseDurationSeconds = &at, &seconds
}
