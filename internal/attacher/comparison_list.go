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
	// listTimeout is how long a whole list may take at least, whatever one page may
	// take: drivers were seen to need two minutes for 50,000 volumes.
	listTimeout = 10 * time.Minute
	// pagesOfListTimeout is how many pages that each take as long as they may fit
	// into one list at least.
	pagesOfListTimeout = 10
	// maxRestarts is how often a list is begun anew because the driver refused to go
	// on with it.
	maxRestarts = 3
)

// lister reads the driver's list of volumes.
type lister struct {
	driver     string
	page       func(ctx context.Context, maxEntries int32, token string) (csi.VolumePage, error)
	maxEntries int32
	timeout    time.Duration // of one page
}

// errStaleToken: the driver has answered ABORTED to a page token, and asks for the
// list to be begun anew (CSI spec, ListVolumes).
var errStaleToken = errors.New("the driver no longer accepts the page token")

// read reads the whole list and keeps what it says of the volumes with these handles.
// An error means that nothing is known.
func (l lister) read(ctx context.Context, handles []string) (volumes map[string]*publication.Entry, entries int, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, max(listTimeout, pagesOfListTimeout*l.timeout),
		errors.New("listing all volumes took too long"))
	defer cancel()
	for restarts := 0; ; restarts++ {
		volumes, entries, err = l.readOnce(ctx, handles)
		if !errors.Is(err, errStaleToken) || restarts == maxRestarts {
			return volumes, entries, err
		}
		log.FromContext(ctx).V(1).Info("Restarting the list of the driver's volumes", "reason", err.Error())
	}
}

func (l lister) readOnce(ctx context.Context, handles []string) (map[string]*publication.Entry, int, error) {
	volumes := make(map[string]*publication.Entry, len(handles))
	for _, handle := range handles {
		volumes[handle] = &publication.Entry{}
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

// merge adds a page. A volume may be listed more than once, on one page or on two
// between which it was changed: what one entry says does not undo the other. Of one that
// has an entry without a status nothing is known.
func merge(volumes map[string]*publication.Entry, page []csi.PublishedVolume) {
	for _, listed := range page {
		entry := volumes[listed.VolumeHandle]
		switch {
		case entry == nil: // nobody asked, or not known
		case listed.Known:
			entry.NodeIDs = append(entry.NodeIDs, listed.NodeIDs...)
		default:
			delete(volumes, listed.VolumeHandle)
		}
	}
}
