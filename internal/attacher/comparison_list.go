package attacher

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"belay.dev/belay/internal/csi"
	"belay.dev/belay/internal/publication"
)

const (
	// listTimeout bounds the time for all pages. Drivers were seen to need two minutes for 50,000 volumes.
	listTimeout = 10 * time.Minute
	// pagesOfListTimeout extends listTimeout to this many pages where --timeout is long.
	pagesOfListTimeout = 10
	// maxRestarts bounds how often a list is restarted after a rejected page token.
	maxRestarts = 3
)

// lister calls ListVolumes for all pages.
type lister struct {
	driver     string
	page       func(ctx context.Context, maxEntries int32, token string) (csi.VolumePage, error)
	maxEntries int32
	timeout    time.Duration // of one page
}

// errStaleToken means that the driver answered ABORTED to a page token: the list has to be restarted (CSI spec,
// ListVolumes).
var errStaleToken = errors.New("the driver no longer accepts the page token")

// read lists all volumes and returns the entries of those with the given handles.
func (l lister) read(ctx context.Context, handles []string) (volumes map[string]*publication.Entry, entries int, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, max(listTimeout, pagesOfListTimeout*l.timeout),
		errors.New("listing all volumes took too long"))
	defer cancel()
	for restarts := 0; ; restarts++ {
		volumes, entries, err = l.readOnce(ctx, handles)
		if !errors.Is(err, errStaleToken) || restarts == maxRestarts {
			return volumes, entries, err
		}
		log.FromContext(ctx).V(1).Info("Restarting the list of the driver's volumes", "err", err)
	}
}

func (l lister) readOnce(ctx context.Context, handles []string) (map[string]*publication.Entry, int, error) {
	volumes, listed := make(map[string]*publication.Entry, len(handles)), make([]publication.Entry, len(handles))
	for i, handle := range handles {
		volumes[handle] = &listed[i]
	}
	entries := 0
	seen := map[string]bool{}
	for token := ""; ; {
		page, err := l.readPage(ctx, token)
		if err != nil {
			return nil, 0, fmt.Errorf("list volumes, page %d: %w", len(seen)+1, err)
		}
		entries += len(page.Published)
		merge(volumes, page.Published)
		if token = page.Next; token == "" {
			return volumes, entries, nil
		}
		if seen[token] {
			return nil, 0, fmt.Errorf("list volumes: page %d repeats an earlier page token, so the list never ends", len(seen)+1)
		}
		seen[token] = true
	}
}

func (l lister) readPage(ctx context.Context, token string) (csi.VolumePage, error) {
	whole := ctx
	ctx, cancel := context.WithTimeout(ctx, l.timeout)
	defer cancel()
	page, err := l.page(ctx, l.maxEntries, token)
	err = csi.Unanswered(ctx, err, csi.NoAnswerError{Driver: l.driver, Call: "ListVolumes", Timeout: l.timeout})
	if err != nil && whole.Err() != nil {
		return page, fmt.Errorf("%w: %w", context.Cause(whole), err)
	}
	if code, _ := csi.Code(err); err != nil && code == codes.Aborted && token != "" {
		return page, fmt.Errorf("%w: %w", errStaleToken, err)
	}
	return page, err
}

// merge adds a page. A volume may be listed several times, on one page or on several: the node IDs are joined. A volume
// with an entry without a status is unknown and removed.
func merge(volumes map[string]*publication.Entry, page []csi.PublishedVolume) {
	for _, listed := range page {
		entry := volumes[listed.VolumeHandle]
		switch {
		case entry == nil: // not asked for, or unknown
		case listed.Known && entry.NodeIDs == nil:
			entry.NodeIDs = listed.NodeIDs // nearly always all of them, so not copied
		case listed.Known:
			entry.NodeIDs = append(entry.NodeIDs, listed.NodeIDs...)
		default:
			delete(volumes, listed.VolumeHandle)
		}
	}
}
