package nodeagent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"

	"belay.dev/belay/internal/csi"
	"belay.dev/belay/internal/nodevolume"
	"belay.dev/belay/internal/telemetry"
)

// expansion is one attempt to expand a volume.
type expansion struct {
	v    *volume
	key  nodevolume.PublishKey
	want *want
	// stagingPath is where the volume is staged.
	stagingPath string
	// capacity, here and refused are the volume's growth as the attempt began.
	capacity, here resource.Quantity
	refused        bool
	claim          *corev1.PersistentVolumeClaim
	size           claimSize
	plan           plan
}

// notSupportedError: the driver has not the capability EXPAND_VOLUME.
type notSupportedError struct{ driver string }

func (e *notSupportedError) Error() string {
	return "NodeExpand is not supported by the CSI driver " + e.driver
}

// expand asks the driver for the volume's new size, and tells the claim. A repeat does
// no harm: an agent that died in between, or could not write, begins anew.
func (a *Agent) expand(ctx context.Context, v *volume, key nodevolume.PublishKey) {
	a.mu.Lock()
	x := expansion{v: v, key: key, want: v.publication(key).want, capacity: v.growth.capacity, here: v.growth.size, refused: v.growth.refused}
	if x.want != nil {
		x.stagingPath = v.stagingPath(x.want)
	}
	a.mu.Unlock()
	if x.want == nil {
		return
	}
	var err error
	if x.claim, err = a.readClaim(ctx, x.want, ""); err != nil {
		a.expansionFailed(&x, fmt.Errorf("mountVolume.NodeExpandVolume get PVC failed : %w", err))
		return
	}
	x.size = sizeOf(x.claim)
	if x.plan = planFor(x.size, x.capacity, x.here); !x.plan.call {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.learnSize(v, x.size, x.capacity)
		return
	}
	if x.size.tracked && !x.plan.written {
		err = a.tellClaim(ctx, &x, func(status *corev1.PersistentVolumeClaimStatus) {
			setResizeStatus(status, corev1.PersistentVolumeClaimNodeResizeInProgress)
		})
		if err != nil {
			a.expansionFailed(&x, fmt.Errorf("MountVolume.NodeExpandVolume failed to mark node expansion in progress: %w", err))
			return
		}
	}
	begun := time.Now()
	err = a.callExpand(ctx, &x)
	a.metrics.Operation(telemetry.NodeOperation{
		Driver: v.driver, Migrated: x.want.migrated, Name: telemetry.OperationExpand, Failed: err != nil, Took: time.Since(begun),
	})
	if err != nil {
		a.expansionRefused(ctx, &x, err)
		return
	}
	a.expanded(ctx, &x)
}

// callExpand calls NodeExpandVolume with kubelet's words: the staging path is always
// said, and nothing of the pod but where the volume is.
func (a *Agent) callExpand(ctx context.Context, x *expansion) error {
	w := x.want
	rpc, cancel := context.WithTimeout(csi.WithMigrated(ctx, w.migrated), a.config.RPCTimeout)
	defer cancel()
	client, has, err := a.plugins.capabilities(rpc, w.driver)
	if err != nil {
		return err
	}
	if !has.Expand {
		return &notSupportedError{w.driver}
	}
	secrets, err := a.secrets(ctx, w.expandSecret)
	if err != nil {
		return err
	}
	call := csi.NodeVolume{
		ID: w.handle, Block: w.block, AccessMode: csi.AccessMode(w.accessMode), FSType: w.fsType, MountFlags: w.mountOptions,
		Secrets: secrets, StagingPath: a.root.Path(x.stagingPath),
	}
	err = a.ask(csi.WithMigrated(ctx, w.migrated), x.v, unanswered{method: "NodeExpandVolume", step: stepSetUp, key: x.key}, func(ctx context.Context) error {
		return client.Expand(ctx, call, a.root.Path(publishPath(w)), x.plan.size.Value(), has)
	})
	a.log.Info("NodeExpandVolume", "volume", x.v.name, "pod", x.key.PodUID, "size", x.plan.size.String(), "outcome", csi.OutcomeOf(err).String())
	return err
}

// expanded tells the claim and the pod that the volume has its new size.
func (a *Agent) expanded(ctx context.Context, x *expansion) {
	if !x.plan.written {
		err := a.tellClaim(ctx, x, func(status *corev1.PersistentVolumeClaimStatus) {
			status.Capacity[corev1.ResourceStorage] = x.plan.size
			delete(status.AllocatedResourceStatuses, corev1.ResourceStorage)
			mergeConditions(status, nil)
		})
		if err != nil {
			a.expansionFailed(x, fmt.Errorf("mountVolume.NodeExpandVolume update pvc status failed: %w", err))
			return
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.tellGrowth(x.v.publication(x.key), corev1.EventTypeNormal, "FileSystemResizeSuccessful",
		fmt.Sprintf("MountVolume.NodeExpandVolume succeeded for volume %q %s", x.want.specName, a.config.NodeName))
	x.v.growth = growth{size: x.capacity, capacity: x.capacity}
	a.letThrough(x.v)
}

// expansionRefused takes in why the driver did not expand the volume, or was not asked.
func (a *Agent) expansionRefused(ctx context.Context, x *expansion, err error) {
	refusal := csi.RefusalOf(err)
	_, unable := errors.AsType[*notSupportedError](err)
	called := refusal != csi.NoRefusal || unable
	if unable && (x.plan.written || !x.size.tracked) {
		// Nobody expects it of this node.
		a.mu.Lock()
		defer a.mu.Unlock()
		x.v.growth = growth{size: x.capacity, capacity: x.capacity}
		a.letThrough(x.v)
		return
	}
	if x.size.tracked && called {
		a.markRefused(ctx, x, refusal, err)
	}
	a.mu.Lock()
	x.v.growth.refused = x.v.growth.refused || called
	if refusal == csi.RefusedInUse {
		a.log.Info("Volume is not expanded while it is used", "volume", x.v.name, "problem", err.Error())
		x.v.growth.inUse, x.v.growth.due = true, false
		a.letThrough(x.v)
		a.mu.Unlock()
		return
	}
	a.mu.Unlock()
	// If it was infeasible, the next try finds the claim saying so, and lets the pod through.
	a.expansionFailed(x, err)
}

// markRefused writes to the claim why its expansion failed, whoever else has written it meanwhile.
func (a *Agent) markRefused(ctx context.Context, x *expansion, refusal csi.Refusal, err error) {
	infeasible := refusal == csi.RefusedForGood || x.refused && x.size.requested.Cmp(x.plan.size) != 0
	_, patchErr := a.patchClaim(ctx, x.claim, false, func(status *corev1.PersistentVolumeClaimStatus) {
		if infeasible {
			setResizeStatus(status, corev1.PersistentVolumeClaimNodeResizeInfeasible)
		}
		mergeConditions(status, &corev1.PersistentVolumeClaimCondition{
			Type: corev1.PersistentVolumeClaimNodeResizeError, Status: corev1.ConditionTrue, LastTransitionTime: metav1.Now(),
			Message: fmt.Sprintf("failed to expand pvc with %v", err),
		})
	})
	if patchErr != nil {
		a.log.Info("Claim not told of the failed expansion", "volume", x.v.name, "problem", patchErr.Error())
	}
}

// expansionFailed has the expansion tried again after a while, and tells the pod.
func (a *Agent) expansionFailed(x *expansion, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	g, p := &x.v.growth, x.v.publication(x.key)
	g.failure = again(g.failure)
	a.log.Info("Step failed", "step", "NodeExpandVolume", "volume", x.v.name, "pod", x.key.PodUID, "failures", g.failure.Count, "problem", err.Error())
	if p.want == nil {
		return
	}
	if p.growsFirst {
		p.problem = err
		if owner := a.pods[types.UID(p.Key.PodUID)]; owner != nil {
			owner.notify()
		}
	}
	reason, text := expansionText(p, err)
	if g.told != text {
		g.told = text
		a.events.Event(p.podOf(), corev1.EventTypeWarning, reason, text)
	}
}

func setResizeStatus(status *corev1.PersistentVolumeClaimStatus, to corev1.ClaimResourceStatus) {
	if status.AllocatedResourceStatuses == nil {
		status.AllocatedResourceStatuses = map[corev1.ResourceName]corev1.ClaimResourceStatus{}
	}
	status.AllocatedResourceStatuses[corev1.ResourceStorage] = to
}

// claimWrites is how often a status is written at most while others write the claim, too.
const claimWrites = 3

// tellClaim writes the claim's status. If another writer was faster, it looks whether
// the claim still wants the same of this node, rather than have the driver called again.
func (a *Agent) tellClaim(ctx context.Context, x *expansion, change func(*corev1.PersistentVolumeClaimStatus)) error {
	for tries := 1; ; tries++ {
		after, err := a.patchClaim(ctx, x.claim, true, change)
		if err == nil || tries == claimWrites || !apierrors.IsConflict(err) {
			x.claim = after
			return err
		}
		claim, readErr := a.readClaim(ctx, x.want, "")
		if readErr != nil {
			return errors.Join(err, readErr)
		}
		p := planFor(sizeOf(claim), x.capacity, x.here)
		if !p.call || p.written != x.plan.written || p.size.Cmp(x.plan.size) != 0 {
			return err
		}
		x.claim, x.size = claim, sizeOf(claim)
	}
}

// readClaim reads the claim of a want, and refuses another one of its name.
func (a *Agent) readClaim(ctx context.Context, w *want, version string) (*corev1.PersistentVolumeClaim, error) {
	ctx, cancel := context.WithTimeout(ctx, apiTimeout)
	defer cancel()
	claim, err := a.client.CoreV1().PersistentVolumeClaims(w.pod.Namespace).Get(ctx, w.claim.name, metav1.GetOptions{ResourceVersion: version})
	if err != nil {
		return nil, fmt.Errorf("read claim %s/%s: %w", w.pod.Namespace, w.claim.name, err)
	}
	if claim.UID != w.claim.uid {
		return nil, fmt.Errorf("claim %s/%s is another one than the pod was bound with", w.pod.Namespace, w.claim.name)
	}
	return claim, nil
}

// patchClaim writes the status of a claim if the change is one. The patch names the claim's UID and,
// if it is bound, the version that was read: nobody may have written meanwhile.
func (a *Agent) patchClaim(ctx context.Context, claim *corev1.PersistentVolumeClaim, bound bool, change func(*corev1.PersistentVolumeClaimStatus)) (*corev1.PersistentVolumeClaim, error) {
	changed := claim.DeepCopy()
	change(&changed.Status)
	if equality.Semantic.DeepEqual(claim.Status, changed.Status) {
		return claim, nil
	}
	before := claim.DeepCopy()
	before.UID, before.ResourceVersion = "", ""
	if !bound {
		changed.ResourceVersion = ""
	}
	from, err := json.Marshal(before)
	if err != nil {
		return claim, fmt.Errorf("encode claim %s/%s: %w", claim.Namespace, claim.Name, err)
	}
	to, err := json.Marshal(changed)
	if err != nil {
		return claim, fmt.Errorf("encode claim %s/%s: %w", claim.Namespace, claim.Name, err)
	}
	patch, err := strategicpatch.CreateTwoWayMergePatch(from, to, before)
	if err != nil {
		return claim, fmt.Errorf("compare claim %s/%s: %w", claim.Namespace, claim.Name, err)
	}
	ctx, cancel := context.WithTimeout(ctx, apiTimeout)
	defer cancel()
	after, err := a.client.CoreV1().PersistentVolumeClaims(claim.Namespace).Patch(ctx, claim.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
	if err != nil {
		return claim, fmt.Errorf("write the status of claim %s/%s: %w", claim.Namespace, claim.Name, err)
	}
	return after, nil
}

// wasEdited: somebody changed the pod itself, and not only its status.
func wasEdited(was, is *corev1.Pod) bool {
	return was.Generation != is.Generation || !maps.Equal(was.Annotations, is.Annotations) || !maps.Equal(was.Labels, is.Labels)
}

// resync reads the claims of a pod again when it is time: a node may not watch
// them, and this is how it learns that a volume grew under a running pod.
func (a *Agent) resync(ctx context.Context, uid types.UID) {
	a.mu.Lock()
	p := a.pods[uid]
	if p == nil || p.removed || len(p.wants) == 0 && !p.resolved {
		a.mu.Unlock()
		return
	}
	if left := time.Until(p.syncAt); left > 0 {
		// The queue keeps one time per key, the earliest: what woke the pod now may
		// have stood in the place of its resync.
		a.podQueue.AddAfter(uid, left)
		a.mu.Unlock()
		return
	}
	a.syncLater(uid, p)
	var due []*want
	for _, w := range p.wants {
		if a.grows(w) {
			due = append(due, w)
		}
	}
	a.mu.Unlock()
	for _, w := range due {
		if err := a.readSize(ctx, w); err != nil && ctx.Err() == nil {
			a.log.V(1).Info("Size of claim not read", "claim", w.claim.name, "pod", uid, "problem", err.Error())
		}
	}
}

// syncLater sets the time of the next resync. The caller holds mu.
func (a *Agent) syncLater(uid types.UID, p *pod) {
	pause := a.together(syncPause(a.config.SyncPeriod, rand.Float64()), a.config.SyncPeriod) //nolint:gosec // spreads reads
	p.syncAt = time.Now().Add(pause)
	a.podQueue.AddAfter(uid, pause)
}

// readSize reads a claim, and its volume if the claim names a size that is not here
// yet. In this order: what the claim says of its volume has been true before.
func (a *Agent) readSize(ctx context.Context, w *want) error {
	claim, err := a.readClaim(ctx, w, "0") // from the API server's cache: a moment does not matter
	if err != nil {
		return err
	}
	s := sizeOf(claim)
	a.mu.Lock()
	v := a.volumes[w.name()]
	look := v != nil && s.known && (v.growth.due || s.beyond(v.growth.size))
	a.mu.Unlock()
	if !look {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, apiTimeout)
	defer cancel()
	pv, err := a.client.CoreV1().PersistentVolumes().Get(ctx, w.specName, metav1.GetOptions{ResourceVersion: "0"})
	if err != nil {
		return fmt.Errorf("read volume %s: %w", w.specName, err)
	}
	if pv.Spec.ClaimRef == nil || pv.Spec.ClaimRef.UID != claim.UID {
		return fmt.Errorf("volume %s is bound to another claim", w.specName)
	}
	capacity := pv.Spec.Capacity[corev1.ResourceStorage]
	a.mu.Lock()
	defer a.mu.Unlock()
	p, v := a.publicationOf(w)
	if p == nil {
		return nil // the pod went meanwhile
	}
	was := v.growth.due
	if p.Phase != nodevolume.Confirmed {
		p.growsFirst = s.behind(capacity)
	}
	a.learnSize(v, s, capacity)
	if v.growth.due && !was {
		a.volumeQueue.Add(v.name)
	}
	return nil
}
