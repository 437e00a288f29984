package nodeagent

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"belay.dev/belay/internal/csi"
	"belay.dev/belay/internal/explain"
	"belay.dev/belay/internal/nodevolume"
	"belay.dev/belay/internal/telemetry"
)

// expansion is one attempt to expand a volume.
type expansion struct {
	v       *volume
	key     nodevolume.PublishKey
	toMount *volumeToMount
	// stagingPath and target are where the volume is staged and published, in requests.
	stagingPath, target string
	claim               *corev1.PersistentVolumeClaim
	attempt             nodevolume.Attempt
	// waits: the pod waited for the volume as the attempt began. What the attempt writes to the claim may release it before the attempt ends.
	waits bool
}

// expand calls NodeExpandVolume and writes the new size to the claim. It is idempotent: after a crash or a failed write it starts over.
func (g *growth) expand(ctx context.Context, v *volume, key nodevolume.PublishKey) {
	g.mu.Lock()
	p := v.ensurePod(key)
	x := expansion{v: v, key: key, toMount: p.toMount, target: g.records.driverPath(p.Record), waits: v.state.Growth.Waits(key)}
	if x.toMount != nil {
		x.stagingPath = g.requests.driverStagingPath(v, x.toMount)
	}
	g.mu.Unlock()
	if x.toMount == nil {
		return
	}
	var err error
	if x.claim, err = g.readClaim(ctx, x.toMount, ""); err != nil {
		g.expansionFailed(ctx, &x, explain.ExpandClaimNotRead(err))
		return
	}
	g.mu.Lock()
	x.attempt = v.state.Growth.Begin(claimSize(x.claim))
	g.releaseWaitingPods(v)
	x.waits = v.state.Growth.Waits(key)
	g.mu.Unlock()
	if !x.attempt.CallsDriver() {
		return
	}
	if err = g.updateClaim(ctx, &x, x.attempt.Before()); err != nil {
		g.expansionFailed(ctx, &x, explain.ExpandNotMarked(err))
		return
	}
	begun := time.Now()
	refusal, err := g.callExpand(ctx, &x)
	g.reports.metrics.Operation(telemetry.NodeOperation{
		Driver: v.driver, Migrated: x.toMount.migrated, Name: telemetry.OperationExpand, Failed: err != nil, Took: time.Since(begun),
	})
	if err != nil {
		g.expansionRefused(ctx, &x, refusal, err)
		return
	}
	if err = g.updateClaim(ctx, &x, x.attempt.After()); err != nil {
		g.expansionFailed(ctx, &x, explain.ExpandNotRecorded(err))
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.reports.emitGrowth(v.ensurePod(key), corev1.EventTypeNormal, explain.FileSystemResizeSuccessful, explain.Expanded(x.toMount.specName, g.config.NodeName))
	v.lastExpandEvent = eventDedup{}
	v.state.Growth.Confirmed(x.attempt)
	g.releaseWaitingPods(v)
}

// callExpand calls NodeExpandVolume with the fields that kubelet sets: always the staging path, and nothing about the pod but the volume
// path.
func (g *growth) callExpand(ctx context.Context, x *expansion) (nodevolume.Refusal, error) {
	w := x.toMount
	rpc, cancel := context.WithTimeout(csi.WithMigrated(ctx, w.migrated), g.config.RPCTimeout)
	defer cancel()
	client, has, err := g.plugins.Capabilities(rpc, w.driver)
	if err != nil {
		return csi.RefusalOf(err), err
	}
	if !has.Expand {
		return nodevolume.NotSupported, errors.New(explain.ExpandNotSupported(w.driver))
	}
	secrets, err := g.requests.secrets(ctx, w.expandSecret)
	if err != nil {
		return csi.RefusalOf(err), err
	}
	call := csi.NodeVolume{
		ID: w.handle, Block: w.block, AccessMode: csi.AccessMode(w.accessMode), FSType: w.fsType, MountFlags: w.mountOptions,
		Secrets: secrets, StagingPath: x.stagingPath,
	}
	err = g.calls.callDriver(csi.WithMigrated(ctx, w.migrated), x.v, pendingCall{method: "NodeExpandVolume", step: stepSetUp, key: x.key}, func(ctx context.Context) error {
		return client.Expand(ctx, call, x.target, x.attempt.Size.Bytes, has)
	})
	g.reports.logCall(x.v, x.key, pendingCall{method: "NodeExpandVolume"}, csi.OutcomeOf(err), "size", x.attempt.Size.Text)
	return csi.RefusalOf(err), err
}

// expansionRefused handles that the driver did not expand the volume, or was not called.
func (g *growth) expansionRefused(ctx context.Context, x *expansion, refusal nodevolume.Refusal, err error) {
	// Written without a resourceVersion: it does not depend on what others wrote to the claim meanwhile.
	if _, writeErr := g.patchClaim(ctx, x.claim, false, x.write(x.attempt.AfterRefusal(refusal), err)); writeErr != nil {
		g.reports.logger(x.v, x.key).Error(writeErr, "Failed to record the failed expansion in the PersistentVolumeClaim")
	}
	g.mu.Lock()
	again := x.v.state.Growth.Refused(x.attempt, refusal)
	if !again {
		x.v.lastExpandEvent = eventDedup{}
	}
	g.releaseWaitingPods(x.v)
	g.mu.Unlock()
	switch {
	case again:
		g.expansionFailed(ctx, x, err)
	case refusal == nodevolume.RefusedInUse:
		g.reports.logger(x.v, x.key).Error(err, "Driver does not expand the volume while it is in use", "remedy", explain.EndPodsToExpand)
	}
}

// expansionFailed schedules a retry and emits an event for the pod. An attempt that ended because the agent stops is not a failure.
func (g *growth) expansionFailed(ctx context.Context, x *expansion, err error) {
	if ctx.Err() != nil {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	p := x.v.ensurePod(x.key)
	x.v.state.Failed(nodevolume.Expand{Key: x.key}, time.Now(), rand.Float64(), false) //nolint:gosec // spreads retries
	g.reports.logFailure(x.v, x.key, "NodeExpandVolume", x.v.state.Growth.Failure.Count, err)
	if p.toMount == nil {
		return
	}
	if x.v.state.Growth.Waits(x.key) {
		p.problem = err
		g.pods.notify(types.UID(p.Key.PodUID))
	}
	reason, text := explain.ExpandFailed(p.Key.SpecName, x.waits, p.toMount.block, err.Error())
	if x.v.lastExpandEvent.isNew(x.key.PodUID+" "+text, time.Now()) {
		g.reports.events.Event(p.podRef(), corev1.EventTypeWarning, reason, text)
	}
}

// write returns the change to the status of the claim; err is the cause of a failed expansion.
func (x *expansion) write(what nodevolume.ClaimWrite, err error) func(*corev1.PersistentVolumeClaimStatus) {
	return func(status *corev1.PersistentVolumeClaimStatus) {
		switch what {
		case nodevolume.MarkInProgress:
			setResizeStatus(status, corev1.PersistentVolumeClaimNodeResizeInProgress)
		case nodevolume.WriteSize:
			status.Capacity[corev1.ResourceStorage] = resource.MustParse(x.attempt.Size.Text)
			delete(status.AllocatedResourceStatuses, corev1.ResourceStorage)
			mergeConditions(status, nil)
		case nodevolume.MarkInfeasible:
			setResizeStatus(status, corev1.PersistentVolumeClaimNodeResizeInfeasible)
			fallthrough
		case nodevolume.MarkFailed:
			mergeConditions(status, &corev1.PersistentVolumeClaimCondition{
				Type: corev1.PersistentVolumeClaimNodeResizeError, Status: corev1.ConditionTrue, LastTransitionTime: metav1.Now(),
				Message: explain.ExpandCondition(err),
			})
		case nodevolume.NoClaimWrite:
		}
	}
}

// claimWrites is the number of attempts to write a claim's status against conflicts.
const claimWrites = 3

// updateClaim writes the claim's status. After a conflict it checks whether the claim still needs the same expansion, so that the driver
// is not called again.
func (g *growth) updateClaim(ctx context.Context, x *expansion, what nodevolume.ClaimWrite) error {
	for attempt := 1; ; attempt++ {
		after, err := g.patchClaim(ctx, x.claim, true, x.write(what, nil))
		if err == nil || attempt == claimWrites || !apierrors.IsConflict(err) {
			x.claim = after
			return err
		}
		claim, readErr := g.readClaim(ctx, x.toMount, "")
		if readErr != nil {
			return errors.Join(err, readErr)
		}
		if !x.attempt.StillApplies(claimSize(claim)) {
			return err
		}
		x.claim = claim
	}
}
