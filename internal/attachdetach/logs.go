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

// Lines of the log name what they are about by the keys volume (the PersistentVolume), handle, driver, node, attachment,
// claim and pod or pods, as belay-attacher's do. Most decisions log nothing: what has to be looked up is looked up for
// lines that are written.

// logConstructor makes the logger of one look at a volume, with which controller-runtime logs what Reconcile returns.
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

// logger names the volume.
func (w *work) logger() logr.Logger { return w.named(w.now.volumeName) }

// loggerAt names the volume as it is known at a node, and the node.
func (w *work) loggerAt(node attachment.NodeName) logr.Logger {
	name := w.now.nameAt(node)
	if _, inline := w.now.inline[node]; inline {
		name = "" // what the pod calls it is no PersistentVolume
	}
	for _, a := range w.now.seen.Attachments {
		if a.Node == node && a.PersistentVolume != "" {
			name = a.PersistentVolume
		}
	}
	return w.named(name).WithValues("node", node)
}

// named names the PersistentVolume of that name and its claim, where there are any.
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

// errorOf names the PersistentVolume and its claim in an error that is logged with w.log alone.
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
	logger := w.loggerAt(hold.Node).WithValues("pod", klog.KObj(pod), "reason", hold.Reason)
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
