package attachdetach

import (
	"errors"
	"fmt"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	"belay.dev/belay/internal/attachment"
	"belay.dev/belay/internal/explain"
)

// The log keys are those of docs/logs.md, which all programs share. Most decisions log nothing, so values are looked up only for messages that are written.

// logConstructor returns the logger for a volume, which controller-runtime also uses for errors of Reconcile.
func logConstructor(base logr.Logger) func(*key) logr.Logger {
	base = base.WithValues("controller", Name)
	return func(k *key) logr.Logger {
		switch {
		case k == nil:
			return base
		case k.Driver == orphanDriver:
			return base.WithValues("attachment", k.Handle)
		}
		return base.WithValues("driver", k.Driver, "handle", k.Handle)
	}
}

// logger returns a logger with the volume.
func (w *work) logger() logr.Logger { return w.named(w.now.volumeName) }

// loggerAt returns a logger with a node and the volume as it is named there.
func (w *work) loggerAt(node attachment.NodeName) logr.Logger {
	name := w.now.volumeNameAt(node)
	if _, inline := w.now.inline[node]; inline {
		name = "" // the pod's name for it is not a PersistentVolume
	}
	for _, a := range w.now.seen.Attachments {
		if a.Node == node && a.PersistentVolume != "" {
			name = a.PersistentVolume
		}
	}
	return w.named(name).WithValues("node", node)
}

// named returns a logger with a PersistentVolume and its claim, if they exist.
func (w *work) named(name string) logr.Logger { return w.state.named(w.log, name) }

func (w *clusterState) named(logger logr.Logger, name string) logr.Logger {
	pv, ok := get[*corev1.PersistentVolume](w.volumes, name)
	switch {
	case ok && pv.Spec.ClaimRef != nil:
		return logger.WithValues("volume", name, "claim", klog.KRef(pv.Spec.ClaimRef.Namespace, pv.Spec.ClaimRef.Name))
	case ok:
		return logger.WithValues("volume", name)
	}
	return logger
}

// errorOf adds the PersistentVolume and its claim to an error that is logged with w.log.
func (w *work) errorOf(err error) error {
	pv, ok := get[*corev1.PersistentVolume](w.state.volumes, w.now.volumeName)
	switch {
	case ok && pv.Spec.ClaimRef != nil:
		return fmt.Errorf("PersistentVolume %s of claim %s/%s: %w", pv.Name, pv.Spec.ClaimRef.Namespace, pv.Spec.ClaimRef.Name, err)
	case ok:
		return fmt.Errorf("PersistentVolume %s: %w", pv.Name, err)
	}
	return err
}

// logWait logs why a pod waits for the volume.
func (w *work) logWait(hold attachment.Wait, pod *corev1.Pod) {
	logger := w.loggerAt(hold.Node).WithValues("pod", klog.KObj(pod), "reason", explain.DetachReason(hold.Reason, hold.Detail))
	if hold.Reason == attachment.AttachFailed {
		logger.Error(errors.New(hold.Detail), "Failed to attach volume")
		return
	}
	var values []any
	if hold.Detail != "" {
		values = append(values, "detail", hold.Detail)
	}
	if blockers := explain.Blockers(w.key.Driver, hold.Blockers); blockers != "" {
		values = append(values, "blockers", blockers)
	}
	logger.Info("Waiting to attach volume", values...)
}
