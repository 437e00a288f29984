package diagnosis

import (
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"belay.dev/belay/internal/attachment"
	"belay.dev/belay/internal/decision"
	"belay.dev/belay/internal/explain"
	"belay.dev/belay/internal/kube"
)

// fitError matches the text of a scheduler that has found no node (k/k v1.30.14 to v1.37.2 pkg/scheduler/framework/types.go FitError.Error): the
// reasons are one sentence. What follows is of preemption, and about other pods.
var fitError = regexp.MustCompile(`^0/\d+ nodes are available: (.*?)(\. .*|\.)?$`)

// counted is the number of nodes before a reason.
var counted = regexp.MustCompile(`^\d+ `)

// missingClaim, claimGone and pvGone are what the scheduler says of one claim before it looks at nodes (k/k v1.30.14 to v1.37.2
// pkg/scheduler/framework/plugins/volumebinding/volume_binding.go, in v1.36.3 :335 to :345; the first is the error of client-go's lister).
var (
	missingClaim = regexp.MustCompile(`^(?:waiting for ephemeral volume controller to create the )?persistentvolumeclaim "([^"]+)"(?: not found)?$`)
	claimGone    = regexp.MustCompile(`^persistentvolumeclaim "[^"]+" is being deleted$`)
	pvGone       = regexp.MustCompile(`^persistentvolumeclaim "[^"]+" bound to non-existent persistentvolume "[^"]+"$|^node\(s\) unavailable due to one or more pvc\(s\) bound to non-existent pv\(s\)$`)
	notInstalled = regexp.MustCompile(`^(\S+) CSI driver is not installed on the node$`)
	notOwned     = regexp.MustCompile(`^PVC [^ ]+ was not created for pod [^ ]+ \(pod is not owner\)$`)
)

// refusals are the scheduler's words about volumes, each the whole of a reason, the most specific first: of a volume in a zone whose only node is
// full, the other nodes say that they are in another zone.
var refusals = []struct {
	text   *regexp.Regexp
	reason decision.Reason
}{
	{missingClaim, explain.ClaimMissing},
	{claimGone, explain.ClaimTerminating},
	{pvGone, explain.PersistentVolumeMissing},
	// k8s.io/component-helpers v0.36.3 storage/ephemeral/ephemeral.go:54.
	{notOwned, explain.EphemeralClaimNotOwned},
	// volumerestrictions/volume_restrictions.go: v1.30.14:55, v1.31.4:57, v1.32.3:58, v1.33.2:58; the second since v1.34.2:59, v1.35.0:60, v1.36.3:60, v1.37.2:61.
	{regexp.MustCompile(`^node has pod using PersistentVolumeClaim with the same name and ReadWriteOncePod access mode$`), explain.ReadWriteOncePodInUse},
	{regexp.MustCompile(`^node\(s\) unavailable due to PersistentVolumeClaim with ReadWriteOncePod access mode already in-use by another pod$`), explain.ReadWriteOncePodInUse},
	// nodevolumelimits/non_csi.go v1.30.14:64, v1.31.4:64; csi.go v1.32.3:43, v1.33.2:43, v1.34.2:44, v1.35.0:43, v1.36.3:44, v1.37.2:45.
	{regexp.MustCompile(`^node\(s\) exceed max volume count$`), explain.AttachLimitReached},
	// volumebinding/binder.go v1.30.14:67, v1.31.4:70, v1.32.3:70, v1.33.2:69, v1.34.2:69, v1.35.0:68, v1.36.3:68, v1.37.2:68.
	{regexp.MustCompile(`^node\(s\) did not have enough free storage$`), explain.NotEnoughStorage},
	// volumebinding/binder.go v1.30.14:63, v1.31.4:66, v1.32.3:66, v1.33.2:65, v1.34.2:65, v1.35.0:64, v1.36.3:64, v1.37.2:64.
	{regexp.MustCompile(`^node\(s\) didn't find available persistent volumes to bind$`), explain.NoVolumeToBind},
	// volumebinding/binder.go v1.30.14:65, v1.31.4:68, v1.32.3:68; the second since v1.33.2:67, v1.34.2:67, v1.35.0:66, v1.36.3:66, v1.37.2:66.
	{regexp.MustCompile(`^node\(s\) had volume node affinity conflict$`), explain.VolumeTopologyConflict},
	{regexp.MustCompile(`^node\(s\) didn't match PersistentVolume's node affinity$`), explain.VolumeTopologyConflict},
	// volumezone/volume_zone.go v1.30.14:56, v1.31.4:58, v1.32.3:60, v1.33.2:60, v1.34.2:61, v1.35.0:61, v1.36.3:61, v1.37.2:62.
	{regexp.MustCompile(`^node\(s\) had no available volume zone$`), explain.VolumeTopologyConflict},
	// nodevolumelimits/csi.go v1.35.0:294, v1.36.3:295, v1.37.2:303, with the feature gate VolumeLimitScaling.
	{notInstalled, explain.DriverNotOnNode},
}

// unboundClaims is what the scheduler says of claims that are to be bound first (volumebinding/volume_binding.go v1.30.14:194, v1.31.4:340, v1.32.3:368,
// v1.33.2:370, v1.34.2:371, v1.35.0:378, v1.36.3:378, v1.37.2:372).
const unboundClaims = "pod has unbound immediate PersistentVolumeClaims"

// boundElsewhereText is what the scheduler says when it has chosen a node, and the provisioner has made a volume that cannot be used there
// (volumebinding/binder.go v1.30.14:621,679, v1.37.2:649,707, behind framework/runtime/framework.go "running PreBind plugin").
var boundElsewhereText = regexp.MustCompile(`^running PreBind plugin "VolumeBinding": binding volumes: pv "[^"]+" node affinity doesn't match node "[^"]+"`)

// schedulerSays is the scheduler's message about a pod for which it found no node, or for which an attempt failed.
func schedulerSays(pod *corev1.Pod) string {
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse {
			return c.Message
		}
	}
	return ""
}

// reasonsOf returns the reasons of a scheduler that has found no node, none for another error.
func reasonsOf(message string) (reasons []string) {
	found := fitError.FindStringSubmatch(oneLine(message))
	if found == nil {
		return nil
	}
	for reason := range strings.SplitSeq(found[1], ", ") {
		reasons = append(reasons, counted.ReplaceAllString(reason, ""))
	}
	return reasons
}

// refused reports whether the scheduler has found no node for the pod, and not because a claim has to be bound before. Another error, such as that
// of a bind that timed out, is about a node that it had found.
func refused(pod *corev1.Pod) bool {
	reasons := reasonsOf(schedulerSays(pod))
	return len(reasons) > 0 && !slices.Contains(reasons, unboundClaims)
}

// Unschedulable returns why the scheduler finds no node for a pod, as far as a volume is the cause.
func Unschedulable(pod *corev1.Pod) decision.Reason { return unschedulable(schedulerSays(pod)) }

func unschedulable(message string) decision.Reason {
	if boundElsewhereText.MatchString(message) {
		return explain.VolumeTopologyConflict
	}
	reasons := reasonsOf(message)
	for _, r := range refusals {
		if slices.ContainsFunc(reasons, r.text.MatchString) {
			return r.reason
		}
	}
	return explain.PodUnschedulable
}

// notInstalledDriver is the first driver of which the scheduler says that a node lacks it.
func notInstalledDriver(pod *corev1.Pod) string {
	for _, reason := range reasonsOf(schedulerSays(pod)) {
		if found := notInstalled.FindStringSubmatch(reason); found != nil {
			return found[1]
		}
	}
	return ""
}

// otherReasons are those that are not about volumes, for the nodes that could have the volume.
func otherReasons(message string) (others []string) {
	for _, reason := range reasonsOf(message) {
		if !slices.ContainsFunc(refusals, func(r struct {
			text   *regexp.Regexp
			reason decision.Reason
		}) bool {
			return r.text.MatchString(reason)
		}) {
			others = append(others, reason)
		}
	}
	return others
}

// gated reports whether a pod has scheduling gates: the scheduler does not look at it before another controller has removed them (k/k v1.36.3
// pkg/registry/core/pod/strategy.go:929).
func gated(pod *corev1.Pod) bool {
	return pod.Spec.NodeName == "" && (len(pod.Spec.SchedulingGates) > 0 || slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse && c.Reason == corev1.PodReasonSchedulingGated
	}))
}

// ofGates explains a pod that has scheduling gates.
func (x *state) ofGates(pod *corev1.Pod) Finding {
	var gates []string
	for _, g := range pod.Spec.SchedulingGates {
		gates = append(gates, x.foreign(g.Name))
	}
	detail := "another controller has to remove its scheduling gates first"
	if len(gates) > 0 {
		detail += ": " + few(gates)
	}
	return x.notVolume(pod, wait{since: pod.CreationTimestamp.Time, detail: detail, waits: explain.WaitGate})
}

// unscheduled explains why a pod has no node.
func (x *state) unscheduled(pod *corev1.Pod) Finding {
	if gated(pod) {
		return x.ofGates(pod)
	}
	w := wait{reason: explain.Scheduling, since: pod.CreationTimestamp.Time}
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse && c.Message != "" {
			w.detail, w.since = w.says(x.foreign(c.Message)), c.LastTransitionTime.Time
			w.reason = unschedulable(c.Message)
		}
	}
	v, h := x.schedulingVolume(pod, &w)
	f := x.finding(pod, w, v, h)
	if h != nil {
		f.Holders = []Holder{*h}
		f.Clock = x.clock(attachment.VolumeKey{Driver: v.Driver, Handle: v.Handle}, h, w)
	}
	facts := x.eventFacts(pod)
	said := x.foreign(schedulerSays(pod))
	if said != "" && said != w.detail && !slices.ContainsFunc(facts, func(f Fact) bool { return f.Component == "scheduler" }) { // events end after an hour
		facts = append(facts, Fact{Component: "scheduler", Message: "FailedScheduling: " + said, At: f.Since})
	}
	f.Facts = append(facts, f.Facts...)
	return f
}

// schedulingVolume finds the volume, and the holder, that keep a pod from being scheduled, and says where the volume could be used.
func (x *state) schedulingVolume(pod *corev1.Pod, w *wait) (*Volume, *Holder) {
	switch w.reason {
	case explain.VolumeTopologyConflict:
		return x.misplaced(pod, w), nil
	case explain.NotEnoughStorage, explain.NoVolumeToBind:
		return x.withoutSpace(pod, w), nil
	case explain.ReadWriteOncePodInUse:
		return x.usedByAnother(pod, w)
	case explain.DriverNotOnNode:
		driver := notInstalledDriver(pod)
		w.fill = func(s *explain.Situation) { s.Driver, s.NotInstalled = x.foreign(driver), x.removed(driver) }
		return nil, nil
	}
	if w.reason != explain.AttachLimitReached {
		return nil, nil
	}
	return x.overLimit(pod, w), nil
}

// overLimit is the volume of a pod whose driver has no free slot left. The scheduler does not say which one that is: a driver that has filled a node comes
// first, then one that has a limit.
func (x *state) overLimit(pod *corev1.Pod, w *wait) (found *Volume) {
	best := -1
	for i := range pod.Spec.Volumes {
		key, pv, ok := x.volumeOfClaim(pod.Namespace, kube.ClaimName(pod, &pod.Spec.Volumes[i]))
		if !ok {
			continue
		}
		slots, rank := x.filledOf(key.Driver), 0
		switch {
		case len(slots.byOrphans) > 0:
			w.reason, w.detail = explain.OrphansFillNode, strings.Join(slots.byOrphans, ", ")
			return x.describe(key, pv)
		case slots.full:
			rank = 2
		case slots.limited:
			rank = 1
		}
		if rank > best {
			best, found = rank, x.describe(key, pv)
		}
	}
	return found
}

// usedByAnother is the claim of a pod that only one pod may use, also if its PersistentVolume could not be read, and the node of the pod that does.
func (x *state) usedByAnother(pod *corev1.Pod, w *wait) (found *Volume, _ *Holder) {
	for i := range pod.Spec.Volumes {
		claim := x.claims[join(pod.Namespace, kube.ClaimName(pod, &pod.Spec.Volumes[i]))]
		if claim == nil {
			continue
		}
		key, pv, ok := x.volumeOfClaim(pod.Namespace, claim.Name)
		v, modes := x.describe(key, pv), claim.Spec.AccessModes
		if pv != nil {
			modes = pv.Spec.AccessModes
		}
		if !slices.Contains(modes, corev1.ReadWriteOncePod) {
			continue // many pods may use it
		}
		if !ok {
			v = &Volume{Namespace: pod.Namespace, Claim: claim.Name, PersistentVolume: claim.Spec.VolumeName}
			found = v
		}
		for _, other := range x.byClaim[join(pod.Namespace, claim.Name)] {
			if other.UID == pod.UID || other.Spec.NodeName == "" || kube.PodEnded(other) {
				continue
			}
			h := Holder{Node: x.node(other.Spec.NodeName), InUse: "unknown", Reported: "unknown", Pods: []PodState{podState(other)}}
			if ok {
				h = x.holder(key, other.Spec.NodeName)
			}
			x.lostHolder(w, &h)
			return v, &h
		}
	}
	return found, nil
}

// misplaced finds the volumes of a pod that can be used on some nodes only, says on which, and returns the first: one that no node can have, or
// else any.
func (x *state) misplaced(pod *corev1.Pod, w *wait) *Volume {
	var first *Volume
	var said []string
	nowhere := false
	for i := range pod.Spec.Volumes {
		claim := x.claims[join(pod.Namespace, kube.ClaimName(pod, &pod.Spec.Volumes[i]))]
		if claim == nil {
			continue
		}
		pv := x.volumes[claim.Spec.VolumeName]
		if pv == nil || affinityOf(pv) == "" {
			continue
		}
		nodes := x.nodesThat(func(labels map[string]string) bool { return kube.Reaches(pv, labels) })
		none := len(nodes) == 0 && slices.Contains(x.Whole, Nodes)
		if first == nil || none && !nowhere {
			key, _ := kube.KeyOfVolume(pv)
			first, nowhere = x.describe(key, pv), none
			if host := hostOf(pv); none && host != "" && x.nodes[host] == nil { // one that exists may lack the label until its driver has registered
				w.reason, w.detail = explain.VolumeNodeGone, host
				w.fill = func(s *explain.Situation) { s.Class, s.Cause = kube.ClassOf(claim), x.provisionedHow(claim, pv) }
				return first
			}
		}
		said = append(said, x.whereUsed(pv, nodes, pod))
	}
	if len(said) > 0 {
		w.detail = strings.Join(said, "; ")
		w.answer.Nowhere = nowhere
		w.answer.ZoneKey = x.foreign(affinityKey(x.volumes[first.PersistentVolume]))
	}
	return first
}

// provisionedHow is the cause that no volume is made for a claim like this one, as far as that is known; empty if one is. A disk or a path of a node may
// be made by hand, or by a provisioner.
func (x *state) provisionedHow(claim *corev1.PersistentVolumeClaim, pv *corev1.PersistentVolume) explain.Cause {
	name, class := kube.ClassOf(claim), x.class(claim)
	switch {
	case name == "", class != nil && class.Provisioner == kube.NoProvisioner, class == nil && x.exists(Ref{Resource: StorageClasses, Name: name}) == decision.No:
		return explain.MadeByHand
	case class == nil && (pv.Spec.Local != nil || pv.Spec.HostPath != nil):
		return explain.PerhapsByHand
	}
	return ""
}

// outOfReach returns that a volume cannot be used on the node of its pod, which then was not chosen by the scheduler, or has other labels now.
// Each Node has labels, that of its host name: without any, they are unknown.
func (x *state) outOfReach(pod *corev1.Pod, key attachment.VolumeKey) wait {
	node, pv := x.nodes[pod.Spec.NodeName], x.volume(key)
	if node == nil || pv == nil || len(node.Labels) == 0 || kube.Reaches(pv, node.Labels) {
		return wait{}
	}
	nodes := x.nodesThat(func(labels map[string]string) bool { return kube.Reaches(pv, labels) })
	if ready := slices.DeleteFunc(slices.Clone(nodes), func(name string) bool { return x.node(name).State != NodeReady }); len(ready) > 0 {
		nodes = ready
	}
	w := wait{reason: explain.VolumeTopologyConflict, since: scheduled(pod), detail: x.whereUsed(pv, nodes, pod)}
	if value := node.Labels[affinityKey(pv)]; value != "" {
		w.detail += "; node " + node.Name + " has " + x.foreign(value)
	}
	w.answer.ZoneKey = x.foreign(affinityKey(pv))
	return w
}
