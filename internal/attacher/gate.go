package attacher

import (
	"context"
	"fmt"
	"sync"
	"time"

	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/client-go/tools/pager"
	"k8s.io/klog/v2"
)

// gate keeps a new leader from deciding on what was so before the old one's last
// writes: it opens when the cache of attachments has reached a quorum read.
type gate struct {
	mu     sync.Mutex
	behind map[string]string // name to the resource version to reach; "" for deleted
	opened chan struct{}     // closed when behind is empty; nil while nobody waits
}

func newGate() *gate { return &gate{} }

// reached takes an object that the watch delivered.
func (g *gate) reached(name, version string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if want, ok := g.behind[name]; ok && want != "" && atLeast(version, want) {
		g.pass(name)
	}
}

// deleted takes a deletion that the watch delivered: whatever was to be reached
// lies before it.
func (g *gate) deleted(name string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if _, ok := g.behind[name]; ok {
		g.pass(name)
	}
}

func (g *gate) pass(name string) {
	delete(g.behind, name)
	if len(g.behind) == 0 && g.opened != nil {
		close(g.opened)
		g.opened = nil
	}
}

// wait sets what the cache has to reach; the channel is closed once it has. The
// cache is asked under the lock, and its events come after its changes, so none
// is missed.
func (g *gate) wait(listed map[string]string, cached func() map[string]string) <-chan struct{} {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.behind, g.opened = map[string]string{}, make(chan struct{})
	opened := g.opened
	have := cached()
	for name, want := range listed {
		if version, ok := have[name]; !ok || !atLeast(version, want) {
			g.behind[name] = want
		}
	}
	for name := range have {
		if _, ok := listed[name]; !ok {
			g.behind[name] = ""
		}
	}
	if len(g.behind) == 0 {
		close(opened)
		g.opened = nil
	}
	return opened
}

func atLeast(version, want string) bool {
	order, err := resourceversion.CompareResourceVersion(version, want)
	return err == nil && order >= 0
}

// catchUpTimeout is how long the cache may take to reach a list before it is
// listed anew: an object that came and went in between is never seen.
const catchUpTimeout = 10 * time.Second

// catchUp lists our attachments at quorum and waits until the cache has come
// that far.
func (a *Attacher) catchUp(ctx context.Context) error {
	for {
		listed, list, err := a.listVersions(ctx)
		select {
		case <-ctx.Done():
			return nil // shut down before it began
		default:
		}
		if err != nil {
			return fmt.Errorf("list VolumeAttachments: %w", err)
		}
		a.objects.attachments.listed(list)
		opened := a.gate.wait(listed, a.cachedVersions)
		timer := time.NewTimer(catchUpTimeout)
		select {
		case <-opened:
			timer.Stop()
			return nil
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-timer.C:
			klog.FromContext(ctx).Info("Watch cache lags behind the API server, listing again")
		}
	}
}

// listVersions reads name and resource version of our attachments at quorum.
func (a *Attacher) listVersions(ctx context.Context) (map[string]string, quorumList, error) {
	listed, all := map[string]string{}, quorumList{uids: map[types.UID]struct{}{}}
	list := pager.New(func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
		page, err := a.client.StorageV1().VolumeAttachments().List(ctx, options)
		if err == nil && all.version == "" {
			all.version = page.ResourceVersion
		}
		return page, err
	})
	err := list.EachListItem(ctx, metav1.ListOptions{}, func(item runtime.Object) error {
		if va, ok := item.(*storagev1.VolumeAttachment); ok && va.Spec.Attacher == a.driver {
			listed[va.Name] = va.ResourceVersion
			all.uids[va.UID] = struct{}{}
		}
		return nil
	})
	return listed, all, err
}

func (a *Attacher) cachedVersions() map[string]string {
	cached := map[string]string{}
	for _, item := range a.objects.attachmentInformer.GetStore().List() {
		if va, ok := item.(*storagev1.VolumeAttachment); ok && va.Spec.Attacher == a.driver {
			cached[va.Name] = va.ResourceVersion
		}
	}
	return cached
}
