package inspect

import (
	"context"
	"slices"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"

	"belay.dev/belay/internal/diagnosis"
	"belay.dev/belay/internal/kube"
)

func (r *run) attachments(ctx context.Context) {
	listAll(ctx, r, diagnosis.Attachments, pagesOf[storagev1.VolumeAttachment](r.clients.StorageV1().RESTClient(), diagnosis.Attachments, ""), func(s *diagnosis.Snapshot, va *storagev1.VolumeAttachment) {
		s.Attachments = append(s.Attachments, keepAttachment(va, r.history))
	})
}

// leases reads those of all components, and with nodes the heartbeats of all nodes too.
func (r *run) leases(ctx context.Context, nodes bool) {
	var options metav1.ListOptions
	if !nodes {
		options.FieldSelector = fields.OneTermNotEqualSelector("metadata.namespace", corev1.NamespaceNodeLease).String()
	}
	if !list(ctx, r, diagnosis.Ref{Resource: diagnosis.Leases}, options, pagesOf[coordinationv1.Lease](r.clients.CoordinationV1().RESTClient(), diagnosis.Leases, ""), keepLease) {
		r.leasesIn(ctx, metav1.NamespaceSystem) // a reader without the right to list all may be allowed to read these
		if nodes {
			r.leasesIn(ctx, corev1.NamespaceNodeLease)
		}
	}
	r.countLeases(ctx)
}

// countLeases puts the leases that do not count apart. Who may write them is read only where that decides it. If it cannot be read, those
// leases do not count, and the snapshot says that they may be missing.
func (r *run) countLeases(ctx context.Context) {
	var owners kube.LeaseOwners
	elsewhere := func(l *coordinationv1.Lease) bool {
		return l.Namespace != corev1.NamespaceNodeLease && !owners.Counts(l.Namespace)
	}
	decides := false
	r.add(func(s *diagnosis.Snapshot) {
		decides = slices.ContainsFunc(s.Leases, func(l *coordinationv1.Lease) bool { return kube.LeadsVolumes(l.Name) && elsewhere(l) })
	})
	if decides {
		read, resource, err := kube.ReadLeaseOwners(ctx, r.clients)
		if owners = read; err != nil {
			r.failed(diagnosis.Ref{Resource: diagnosis.Resource(resource)}, "list", err)
		}
	}
	r.add(func(s *diagnosis.Snapshot) {
		for _, l := range s.Leases {
			if elsewhere(l) {
				s.OtherLeases = append(s.OtherLeases, l)
			}
		}
		s.Leases = slices.DeleteFunc(s.Leases, elsewhere)
	})
}

func (r *run) leasesIn(ctx context.Context, namespace string) {
	list(ctx, r, diagnosis.Ref{Resource: diagnosis.Leases, Namespace: namespace}, metav1.ListOptions{}, pagesOf[coordinationv1.Lease](r.clients.CoordinationV1().RESTClient(), diagnosis.Leases, namespace), keepLease)
}

// heartbeat reads the lease of one node.
func (r *run) heartbeat(ctx context.Context, node string) {
	ref := diagnosis.Ref{Resource: diagnosis.Leases, Namespace: corev1.NamespaceNodeLease, Name: node}
	get(ctx, r, ref, r.clients.CoordinationV1().Leases(corev1.NamespaceNodeLease).Get, keepLease)
}

func keepLease(s *diagnosis.Snapshot, lease *coordinationv1.Lease) {
	lease.ObjectMeta = keepMeta(lease.ObjectMeta)
	s.Leases = append(s.Leases, lease)
}

func (r *run) drivers(ctx context.Context) {
	listAll(ctx, r, diagnosis.Drivers, pagesOf[storagev1.CSIDriver](r.clients.StorageV1().RESTClient(), diagnosis.Drivers, ""), func(s *diagnosis.Snapshot, d *storagev1.CSIDriver) {
		s.Drivers = append(s.Drivers, d)
	})
}

func (r *run) csiNodes(ctx context.Context) {
	listAll(ctx, r, diagnosis.CSINodes, pagesOf[storagev1.CSINode](r.clients.StorageV1().RESTClient(), diagnosis.CSINodes, ""), func(s *diagnosis.Snapshot, n *storagev1.CSINode) {
		n.ObjectMeta = keepMeta(n.ObjectMeta)
		s.CSINodes = append(s.CSINodes, n)
	})
}

func (r *run) nodes(ctx context.Context) {
	listAll(ctx, r, diagnosis.Nodes, pagesOf[corev1.Node](r.clients.CoreV1().RESTClient(), diagnosis.Nodes, ""), func(s *diagnosis.Snapshot, n *corev1.Node) { s.Nodes = append(s.Nodes, keepNode(n)) })
}

func (r *run) volumes(ctx context.Context) {
	zones := map[string]*corev1.VolumeNodeAffinity{} // there are few, and most volumes share one
	listAll(ctx, r, diagnosis.Volumes, pagesOf[corev1.PersistentVolume](r.clients.CoreV1().RESTClient(), diagnosis.Volumes, ""), func(s *diagnosis.Snapshot, pv *corev1.PersistentVolume) {
		kept := keepVolume(pv)
		if zone := kept.Spec.NodeAffinity; zone != nil {
			text := zone.String()
			if zones[text] == nil {
				zones[text] = zone
			}
			kept.Spec.NodeAffinity = zones[text]
		}
		s.Volumes = append(s.Volumes, kept)
	})
}

// claims reads the claims of a namespace, or of all for "".
func (r *run) claims(ctx context.Context, namespace string) {
	if list(ctx, r, diagnosis.Ref{Resource: diagnosis.Claims, Namespace: namespace}, metav1.ListOptions{}, pagesOf[corev1.PersistentVolumeClaim](r.clients.CoreV1().RESTClient(), diagnosis.Claims, namespace),
		func(s *diagnosis.Snapshot, c *corev1.PersistentVolumeClaim) {
			s.Claims = append(s.Claims, keepClaim(c))
		}) {
		if namespace == "" {
			r.whole(diagnosis.Claims)
		} else {
			r.add(func(s *diagnosis.Snapshot) { s.Absent = append(s.Absent, diagnosis.ClaimsIn(namespace)) })
		}
		r.mayNameClaims(namespace)
	}
}

// mayNameClaims records that a namespace was read. All namespaces may be named only once pods and claims of all could be read.
func (r *run) mayNameClaims(namespace string) {
	if namespace != "" {
		r.mayName(namespace)
	}
}

// pods reads the pods of a namespace, or of all for "". What keepPod leaves out is not kept.
func (r *run) pods(ctx context.Context, namespace string) {
	if !r.podsThat(ctx, namespace, r.keepPod) {
		return
	}
	if namespace == "" {
		r.whole(diagnosis.Pods)
	}
}

// podsUsing reads the pods of a namespace and keeps those that use one of the claims.
func (r *run) podsUsing(ctx context.Context, namespace string, claims []string) {
	r.podsThat(ctx, namespace, func(s *diagnosis.Snapshot, pod *corev1.Pod) {
		if slices.ContainsFunc(pod.Spec.Volumes, func(v corev1.Volume) bool { return slices.Contains(claims, kube.ClaimName(pod, &v)) }) {
			r.keepPod(s, pod)
		}
	})
}

// podsThat reads the pods of a namespace and reports whether it has.
func (r *run) podsThat(ctx context.Context, namespace string, keep func(*diagnosis.Snapshot, *corev1.Pod)) bool {
	if !list(ctx, r, diagnosis.Ref{Resource: diagnosis.Pods, Namespace: namespace}, metav1.ListOptions{}, pagesOf[corev1.Pod](r.clients.CoreV1().RESTClient(), diagnosis.Pods, namespace), keep) {
		return false
	}
	if namespace != "" {
		r.add(func(s *diagnosis.Snapshot) { s.Absent = append(s.Absent, diagnosis.PodsIn(namespace)) })
	}
	r.mayName(namespace)
	return true
}

// podsOn reads the pods of a node, of all namespaces. A reader without the right to that may be allowed to read one namespace.
func (r *run) podsOn(ctx context.Context, node, namespace string) {
	ref := diagnosis.PodsOf(node)
	if node == "" || !r.once(ref) {
		return
	}
	options := metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("spec.nodeName", node).String()}
	if list(ctx, r, diagnosis.Ref{Resource: diagnosis.Pods}, options, pagesOf[corev1.Pod](r.clients.CoreV1().RESTClient(), diagnosis.Pods, ""), r.keepPod) {
		r.add(func(s *diagnosis.Snapshot) { s.Absent = append(s.Absent, ref) })
		r.mayName("")
	} else if namespace != "" && r.once(diagnosis.PodsIn(namespace)) {
		r.pods(ctx, namespace)
	}
}

// keepPod stores a pod that uses a volume, or that is being deleted: it may stay because of a volume of another kind. Those that are in
// several lists are sorted out by merge.
func (r *run) keepPod(s *diagnosis.Snapshot, pod *corev1.Pod) {
	if volumes := volumesThatWait(pod); len(volumes) > 0 || pod.DeletionTimestamp != nil {
		s.Pods = append(s.Pods, keepPod(pod, volumes, r.history))
	}
}

// warnings reads the warnings of a namespace, or of all for "".
func (r *run) warnings(ctx context.Context, namespace string) {
	r.events(ctx, namespace, fields.OneTermEqualSelector("type", corev1.EventTypeWarning))
}

// eventsOf reads the events of one object.
func (r *run) eventsOf(ctx context.Context, namespace, uid string) {
	r.events(ctx, namespace, fields.OneTermEqualSelector("involvedObject.uid", uid))
}

// eventsWith reads the events of a namespace with a reason.
func (r *run) eventsWith(ctx context.Context, namespace, reason string) {
	r.events(ctx, namespace, fields.OneTermEqualSelector("reason", reason))
}

// events reads the events of a namespace, or of all for "", that a selector selects.
func (r *run) events(ctx context.Context, namespace string, selector fields.Selector) {
	options := metav1.ListOptions{FieldSelector: selector.String()}
	list(ctx, r, diagnosis.Ref{Resource: diagnosis.Events, Namespace: namespace}, options, pagesOf[corev1.Event](r.clients.CoreV1().RESTClient(), diagnosis.Events, namespace), keepEvent)
}

func keepEvent(s *diagnosis.Snapshot, e *corev1.Event) {
	e.ObjectMeta = keepMeta(e.ObjectMeta)
	s.Events = append(s.Events, e)
}
