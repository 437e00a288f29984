package nodeagent

import (
	"context"

	"github.com/go-logr/logr"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/workqueue"

	"belay.dev/belay/internal/nodeagent/plugins"
	"belay.dev/belay/internal/nodeagent/worker"
)

// tasks does what is due for a volume from time to time: it collects stats, and reads why a volume is not attached.
type tasks struct {
	*volumeSet

	config   Config
	log      logr.Logger
	client   kubernetes.Interface
	records  *recordStore
	pods     *podManager
	plugins  *plugins.Plugins
	reports  *reports
	schedule schedule
	due      workqueue.TypedDelayingInterface[periodicTask]
}

// periodicTask is a periodic task of a volume. It runs in its own goroutine, at most once at a time, so that a driver that hangs blocks
// neither reconciliation nor other tasks.
type periodicTask struct {
	kind   taskKind
	volume string
}

type taskKind int

const (
	gatherStats taskKind = iota
	readAttachError
)

func (t *tasks) runTasks(ctx context.Context) {
	worker.Serve(t.due, func(c periodicTask) {
		switch {
		case ctx.Err() != nil:
		case c.kind == gatherStats:
			t.gatherStats(ctx, c.volume)
		default:
			t.readAttachError(ctx, c.volume)
		}
	})
}
