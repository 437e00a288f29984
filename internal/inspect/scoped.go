package inspect

import (
	"context"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"belay.dev/belay/internal/attachment"
	"belay.dev/belay/internal/diagnosis"
	"belay.dev/belay/internal/explain"
	"belay.dev/belay/internal/kube"
)

// few is how many objects of a kind are read one by one. For more, all are listed: one request, whatever the number.
const few = 8

// About reads what an explanation of one object needs: the object, what it refers to, the VolumeAttachments of its volumes, and the
// nodes that have them. Of the cluster it lists only VolumeAttachments, leases and drivers.
func (r *Reader) About(ctx context.Context, subject diagnosis.Ref) *diagnosis.Snapshot {
	ctx, cancel := context.WithTimeout(ctx, Timeout)
	defer cancel()
	x := r.start()
	x.about(ctx, subject)
	return x.finish()
}

func (r *run) about(ctx context.Context, subject diagnosis.Ref) {
	parallel(
		func() { r.attachments(ctx) },
		func() { r.leases(ctx, false) },
		func() { r.drivers(ctx) },
		func() { r.subject(ctx, subject) },
		func() { r.listFences(ctx) },
	)
	r.sources(ctx, subject)
	r.surroundings(ctx, subject)
	r.torn(ctx)
	r.found(ctx, subject)
	if subject.Resource == diagnosis.Nodes {
		r.machine(ctx, subject.Name)
	}
	if slices.Contains(r.into.Whole, diagnosis.Fences) && r.anyLost() {
		r.recoveryEvents(ctx)
		if subject.Resource == diagnosis.Nodes {
			r.othersSilent(ctx, subject.Name)
		}
	}
}

// subject reads the object itself, and the pods that a claim or a volume may be used by.
func (r *run) subject(ctx context.Context, ref diagnosis.Ref) {
	switch ref.Resource {
	case diagnosis.Pods:
		if pod := get(ctx, r, ref, r.clients.CoreV1().Pods(ref.Namespace).Get, storePod(r)); pod != nil {
			r.mayName(ref.Namespace)
		}
	case diagnosis.Claims:
		parallel(func() { r.claim(ctx, ref.Namespace, ref.Name) }, func() { r.podsUsing(ctx, ref.Namespace, []string{ref.Name}) })
	case diagnosis.Volumes:
		r.volume(ctx, ref.Name)
	case diagnosis.Nodes:
		parallel(func() { r.node(ctx, ref.Name) }, func() { r.csiNode(ctx, ref.Name) }, func() { r.podsOn(ctx, ref.Name, "") })
	case diagnosis.StatefulSets, diagnosis.Deployments, diagnosis.ReplicaSets, diagnosis.DaemonSets, diagnosis.Jobs:
		r.workload(ctx, ref)
	case diagnosis.Attachments, diagnosis.Leases, diagnosis.CSINodes, diagnosis.Drivers, diagnosis.Events, diagnosis.Namespaces, diagnosis.ClusterRoles, diagnosis.ClusterRoleBindings,
		diagnosis.Fences, diagnosis.FenceSources, diagnosis.StorageClasses, diagnosis.Capacities: // all are listed
	}
}

// storePod keeps the pod that was asked about even if it uses no volume, with its finalizers, grace period, and all conditions and containers: what
// it waits for may be no volume.
func storePod(r *run) func(*diagnosis.Snapshot, *corev1.Pod) {
	return func(s *diagnosis.Snapshot, pod *corev1.Pod) {
		s.Pods = append(s.Pods, keepPod(pod, volumesThatWait(pod), true))
	}
}

func (r *run) claim(ctx context.Context, namespace, name string) {
	ref := diagnosis.Ref{Resource: diagnosis.Claims, Namespace: namespace, Name: name}
	if get(ctx, r, ref, r.clients.CoreV1().PersistentVolumeClaims(namespace).Get, func(s *diagnosis.Snapshot, c *corev1.PersistentVolumeClaim) {
		kept := keepClaim(c)
		kept.Annotations = only(c.Annotations, ofClaim...) // its driver too, where the PersistentVolume may not be read
		s.Claims = append(s.Claims, kept)
	}) != nil {
		r.mayName(namespace)
	}
}

func (r *run) volume(ctx context.Context, name string) {
	get(ctx, r, diagnosis.Ref{Resource: diagnosis.Volumes, Name: name}, r.clients.CoreV1().PersistentVolumes().Get,
		func(s *diagnosis.Snapshot, pv *corev1.PersistentVolume) { s.Volumes = append(s.Volumes, pv) })
}

func (r *run) node(ctx context.Context, name string) {
	get(ctx, r, diagnosis.Ref{Resource: diagnosis.Nodes, Name: name}, r.clients.CoreV1().Nodes().Get,
		func(s *diagnosis.Snapshot, n *corev1.Node) { s.Nodes = append(s.Nodes, keepNode(n)) })
}

func (r *run) csiNode(ctx context.Context, name string) {
	get(ctx, r, diagnosis.Ref{Resource: diagnosis.CSINodes, Name: name}, r.clients.StorageV1().CSINodes().Get,
		func(s *diagnosis.Snapshot, n *storagev1.CSINode) { s.CSINodes = append(s.CSINodes, n) })
}

// sources reads the claims and volumes that the subject refers to, and the pods that use them.
func (r *run) sources(ctx context.Context, subject diagnosis.Ref) {
	if subject.Resource == diagnosis.Nodes && r.unexplained(subject.Name) {
		r.claimsOfPods(ctx)
	}
	if subject.Namespace != "" { // the claims of pods on a node are found by their volumes
		each(r.claimNames(), func(name string) { r.claim(ctx, subject.Namespace, name) }, func() { r.claims(ctx, subject.Namespace) })
	}
	each(r.volumeNames(subject), func(name string) { r.volume(ctx, name) }, func() { r.volumes(ctx) })
	if subject.Namespace != "" {
		return
	}
	// The claim of a volume, and the pods that use it, are in a namespace that the reader may or may not be allowed to read.
	namespaces := map[string][]string{}
	for _, pv := range r.into.Volumes {
		if ref := pv.Spec.ClaimRef; ref != nil {
			namespaces[ref.Namespace] = append(namespaces[ref.Namespace], ref.Name)
		}
	}
	if len(namespaces) > few {
		r.hideForbidden(func() { parallel(func() { r.claims(ctx, "") }, func() { r.pods(ctx, "") }) })
		return
	}
	for namespace, claims := range namespaces {
		r.hideForbidden(func() {
			parallel(
				func() {
					each(claims, func(name string) { r.claim(ctx, namespace, name) }, func() { r.claims(ctx, namespace) })
				},
				func() {
					if subject.Resource != diagnosis.Nodes { // the pods of a node were read
						r.podsUsing(ctx, namespace, claims)
					}
				},
			)
		})
	}
}

// unexplained reports whether the node lists a volume that has no VolumeAttachment there: whether a pod waits for it, its claims show.
func (r *run) unexplained(node string) bool {
	for _, n := range r.into.Nodes {
		if n.Name != node {
			continue
		}
		for _, v := range n.Status.VolumesInUse {
			driver, handle, ok := kube.ParseUniqueVolumeName(string(v))
			key := attachment.VolumeKey{Driver: driver, Handle: handle}
			if ok && !slices.ContainsFunc(r.into.Attachments, func(va *storagev1.VolumeAttachment) bool {
				return va.Spec.NodeName == node && kube.IsAttachmentOf(va, key)
			}) {
				return true
			}
		}
	}
	return false
}

// claimsOfPods reads the claims of the pods that were read.
func (r *run) claimsOfPods(ctx context.Context) {
	claims := map[string][]string{}
	for _, pod := range r.into.Pods {
		for i := range pod.Spec.Volumes {
			if name := kube.ClaimName(pod, &pod.Spec.Volumes[i]); name != "" {
				claims[pod.Namespace] = append(claims[pod.Namespace], name)
			}
		}
	}
	if len(claims) > few {
		r.hideForbidden(func() { r.claims(ctx, "") })
		return
	}
	for namespace, names := range claims {
		r.hideForbidden(func() {
			each(names, func(name string) { r.claim(ctx, namespace, name) }, func() { r.claims(ctx, namespace) })
		})
	}
}

// hideForbidden removes the names of namespaces and claims that the reader may not read from what could not be read.
func (r *run) hideForbidden(read func()) {
	before := len(r.into.Unread)
	read()
	r.add(func(s *diagnosis.Snapshot) {
		for i := range s.Unread[before:] {
			if u := &s.Unread[before+i]; u.Forbidden {
				u.Namespace, u.Name = "", ""
			}
		}
		s.Unread = distinct(s.Unread)
	})
}

func distinct(unread []diagnosis.Unread) []diagnosis.Unread {
	var kept []diagnosis.Unread
	for _, u := range unread {
		if !slices.Contains(kept, u) {
			kept = append(kept, u)
		}
	}
	return kept
}

// each reads few objects one by one, or many at once.
func each(names []string, one func(string), all func()) {
	names = slices.Clone(names) // calls at the same time have the same names
	slices.Sort(names)
	names = slices.Compact(names)
	if len(names) > few {
		all()
		return
	}
	calls := make([]func(), 0, len(names))
	for _, name := range names {
		calls = append(calls, func() { one(name) })
	}
	parallel(calls...)
}

func (r *run) claimNames() []string {
	var names []string
	for _, pod := range r.into.Pods {
		for i := range pod.Spec.Volumes {
			if name := kube.ClaimName(pod, &pod.Spec.Volumes[i]); name != "" {
				names = append(names, name)
			}
		}
	}
	return names
}

// volumeNames returns the PersistentVolumes of the subject's claims, of its VolumeAttachment, or of those of its node.
func (r *run) volumeNames(subject diagnosis.Ref) []string {
	var names []string
	for _, claim := range r.into.Claims {
		if claim.Spec.VolumeName != "" {
			names = append(names, claim.Spec.VolumeName)
		}
	}
	for _, va := range r.into.Attachments {
		if subject.Resource == diagnosis.Attachments && va.Name == subject.Name || subject.Resource == diagnosis.Nodes && va.Spec.NodeName == subject.Name {
			if name := kube.SourceName(va); name != "" {
				names = append(names, name)
			}
		}
	}
	return names
}

// surroundings reads the nodes that have the volumes or want them, their pods, and the events.
func (r *run) surroundings(ctx context.Context, subject diagnosis.Ref) {
	keys := map[attachment.VolumeKey]bool{}
	sources := map[string]bool{}
	for _, pv := range r.into.Volumes {
		sources[pv.Name] = true
		if key, ok := kube.KeyOfVolume(pv); ok {
			keys[key] = true
		}
	}
	calls := r.eventsAround(ctx, subject)
	var nodes []string
	held := r.held(keys, sources, subject)
	holders := nodesOf(held)
	for _, pod := range r.into.Pods {
		if pod.Spec.NodeName == "" {
			continue
		}
		nodes = append(nodes, pod.Spec.NodeName)
		if pod.Status.Phase == corev1.PodRunning && pod.Name == subject.Name && len(pod.Spec.Volumes) > 0 {
			holders = append(holders, pod.Spec.NodeName) // what else uses the volume under a running pod, if its VolumeAttachment is gone
		}
	}
	nodes = append(nodes, holders...)
	if subject.Resource == diagnosis.Nodes {
		nodes = append(nodes, subject.Name)
	}
	// before the calls, which add to what was read
	missing, refused := r.driverMissing(held) || r.provisionerMissing(), slices.ContainsFunc(held, refused)
	anyNode := r.placed() || slices.ContainsFunc(held, diagnosis.RestsOnNodes)
	calls = append(calls,
		func() {
			if anyNode { // which node it is, who lists the volume in use, and which have what a volume needs, any Node may show
				r.nodes(ctx)
				return
			}
			each(nodes, func(name string) { r.node(ctx, name) }, func() { r.nodes(ctx) })
		},
		func() {
			if missing || refused || r.refused(explain.VolumeTopologyConflict) { // whether any node has the driver shows whether it is installed at all; an error may name the node ID of any
				r.csiNodes(ctx)
				return
			}
			each(nodes, func(name string) { r.csiNode(ctx, name) }, func() { r.csiNodes(ctx) })
		},
		func() {
			each(nodes, func(name string) { r.heartbeat(ctx, name) }, func() { r.leasesIn(ctx, corev1.NamespaceNodeLease) })
		},
		func() {
			each(holders, func(name string) { r.podsOn(ctx, name, subject.Namespace) }, func() { r.pods(ctx, "") })
		},
		r.attacherPod(ctx, held),
	)
	parallel(calls...)
}

// found reads what only an answer that was found needs: all nodes if a pod is on one where its volume cannot be used, which nodes have rebooted if a
// driver has not registered on one, and the pods that use a claim if one of them has it, where no VolumeAttachment could be read that shows it.
func (r *run) found(ctx context.Context, subject diagnosis.Ref) {
	var calls []func()
	if !slices.Contains(r.into.Whole, diagnosis.Nodes) && r.into.Misplaced() {
		calls = append(calls, func() { r.nodes(ctx) }, func() { r.csiNodes(ctx) })
	}
	for namespace, pods := range r.into.ProvisionerPods() {
		for _, pod := range pods {
			calls = append(calls, func() { r.aPod(ctx, namespace, pod) })
		}
	}
	if slices.ContainsFunc(r.into.Events, diagnosis.Unregistered) {
		calls = append(calls, func() { r.eventsWith(ctx, metav1.NamespaceDefault, diagnosis.Rebooted) })
	}
	if subject.Resource == diagnosis.Pods && !slices.Contains(r.into.Whole, diagnosis.Attachments) && r.into.HeldByPod() {
		names := r.claimNames()
		calls = append(calls, func() { r.otherPodsUsing(ctx, subject.Namespace, names) })
	}
	parallel(calls...)
}

// otherPodsUsing reads the pods that use one of the claims and were not read before.
func (r *run) otherPodsUsing(ctx context.Context, namespace string, claims []string) {
	r.podsThat(ctx, namespace, func(s *diagnosis.Snapshot, pod *corev1.Pod) {
		known := slices.ContainsFunc(s.Pods, func(p *corev1.Pod) bool { return p.UID == pod.UID })
		if !known && slices.ContainsFunc(pod.Spec.Volumes, func(v corev1.Volume) bool { return slices.Contains(claims, kube.ClaimName(pod, &v)) }) {
			r.keepPod(s, pod)
		}
	})
}

// attacherPod returns the call that reads the pod that holds the lease of an attacher which has something to do, if a pod does: its log is named
// then. Whether that may be read changes nothing else.
func (r *run) attacherPod(ctx context.Context, held []*storagev1.VolumeAttachment) func() {
	for _, va := range held {
		for _, lease := range r.into.Leases {
			holder := ptr.Deref(lease.Spec.HolderIdentity, "")
			if va.Status.Attached && va.DeletionTimestamp == nil || holder == "" || lease.Name != kube.SanitizeDriverName(kube.AttacherLease+va.Spec.Attacher) {
				continue
			}
			return func() { r.aPod(ctx, lease.Namespace, holder) }
		}
	}
	return func() {}
}

// aPod reads a pod whose log is named then, if it exists and may be read.
func (r *run) aPod(ctx context.Context, namespace, name string) {
	if pod, err := r.clients.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{}); err == nil {
		r.add(func(s *diagnosis.Snapshot) { s.Pods = append(s.Pods, keepPod(pod, nil, false)) })
	}
}

// eventsAround returns the calls that read the events of pods that wait and of claims without a volume, and everything if the scheduler
// found all nodes full.
func (r *run) eventsAround(ctx context.Context, subject diagnosis.Ref) (calls []func()) {
	for _, pod := range r.into.Pods {
		if subject.Resource == diagnosis.Pods || pod.DeletionTimestamp == nil && waits(pod) {
			calls = append(calls, func() { r.eventsOf(ctx, pod.Namespace, string(pod.UID)) })
		}
		if full(pod) {
			calls = append(calls, func() { r.claims(ctx, "") }, func() { r.volumes(ctx) }, func() { r.pods(ctx, "") }, func() { r.csiNodes(ctx) })
		}
	}
	calls = append(calls, r.eventsOfClaims(ctx)...)
	calls = append(calls, r.nodeAgentEvents(ctx)...)
	if len(calls) > 2*few { // a claim that many pods wait for
		calls = []func(){func() { r.warnings(ctx, subject.Namespace) }}
	}
	return append(calls, r.provisioning(ctx, subject.Namespace, false)...)
}

// waits reports whether a pod has not started, or not again: one that ran before its node rebooted keeps its phase.
func waits(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodPending || pod.Status.Phase == corev1.PodRunning && !slices.ContainsFunc(pod.Status.ContainerStatuses, runs)
}

// nodeAgentEvents returns the calls that read what node agents and the controller said about volumes that are in use: unmounts that fail,
// and detaches under a mount. The pods that they are about may run, or be gone.
func (r *run) nodeAgentEvents(ctx context.Context) (calls []func()) {
	namespaces := []string{}
	for _, pv := range r.into.Volumes {
		if ref := pv.Spec.ClaimRef; ref != nil && r.into.MayName(ref.Namespace) && !slices.Contains(namespaces, ref.Namespace) {
			namespaces = append(namespaces, ref.Namespace)
		}
	}
	if len(namespaces) > few {
		namespaces = []string{""}
	}
	for _, namespace := range namespaces {
		for _, reason := range []string{explain.FailedUnmount, explain.VolumeDetachedInUse} {
			calls = append(calls, func() { r.eventsWith(ctx, namespace, reason) })
		}
	}
	return calls
}

// held returns the VolumeAttachments of the volumes, and those that the subject is about. One may name another PersistentVolume of the
// same volume.
func (r *run) held(keys map[attachment.VolumeKey]bool, sources map[string]bool, subject diagnosis.Ref) []*storagev1.VolumeAttachment {
	var found []*storagev1.VolumeAttachment
	for _, va := range r.into.Attachments {
		key, known := kube.VolumeOfAttachment(va)
		about := subject.Resource == diagnosis.Attachments && va.Name == subject.Name || subject.Resource == diagnosis.Nodes && va.Spec.NodeName == subject.Name
		if about || known && keys[key] || sources[kube.SourceName(va)] || len(keys) <= few && namedAfter(va, keys) {
			found = append(found, va)
		}
	}
	return found
}

func namedAfter(va *storagev1.VolumeAttachment, keys map[attachment.VolumeKey]bool) bool {
	for key := range keys {
		if kube.IsAttachmentOf(va, key) {
			return true
		}
	}
	return false
}

// nodesOf returns the nodes of VolumeAttachments, and those that a driver lists their volumes at too.
func nodesOf(attachments []*storagev1.VolumeAttachment) []string {
	var nodes []string
	for _, va := range attachments {
		nodes = append(nodes, va.Spec.NodeName)
		if e, ok := kube.ElsewhereOf(va, time.Now()); ok && e.Node != "" {
			nodes = append(nodes, e.Node)
		}
	}
	return nodes
}

// driverMissing reports whether the driver of one of the VolumeAttachments has no CSIDriver object.
func (r *run) driverMissing(attachments []*storagev1.VolumeAttachment) bool {
	return slices.ContainsFunc(attachments, func(va *storagev1.VolumeAttachment) bool {
		return !slices.ContainsFunc(r.into.Drivers, func(d *storagev1.CSIDriver) bool { return d.Name == va.Spec.Attacher })
	})
}

// refused reports whether a volume is not attached because its driver, or the attacher, refuses it.
func refused(va *storagev1.VolumeAttachment) bool {
	return va.Status.AttachError != nil && !va.Status.Attached
}

// full reports whether the scheduler found every node full of volumes: who fills them is then part of the answer.
func full(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse && strings.Contains(c.Message, "exceed max volume count")
	})
}
