package recovery

import (
	"context"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"

	fencingv1 "belay.dev/belay/api/fencing/v1alpha1"
)

// sharedMessage names the FenceSource with the same switch, nil if they could not be listed.
func sharedMessage(other *fencingv1.FenceSource) string {
	if other == nil {
		return sharedAddress + ": the FenceSources could not be listed"
	}
	return sharedAddress + ": FenceSource " + other.Name + ". One of the two is wrong"
}

const sharedAddress = "another FenceSource has the same address and plug"

// twinMessage names the node whose hardware has the same system UUID, empty if they could not be listed.
func twinMessage(node string) string {
	if node == "" {
		return "whether other hardware has the same system UUID is unknown: the FenceSources or Nodes could not be listed"
	}
	return "the hardware behind FenceSource " + node + " has the same system UUID. One of the two is wrong"
}

// sharesAddress reports whether it was found that another FenceSource has the same switch.
func sharesAddress(source *fencingv1.FenceSource) bool {
	c := meta.FindStatusCondition(source.Status.Conditions, conditionFenceReady)
	return c != nil && c.Reason == reasonShared && strings.HasPrefix(c.Message, sharedAddress)
}

// hurry has the switch of a node exercised with the next look: another FenceSource has it.
func (f *fencer) hurry(node string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.hurries == nil {
		f.hurries = map[string]bool{}
	}
	f.hurries[node] = true
}

// hurried reports whether the switch of a node is to be exercised now: another FenceSource has it since, or has it no more.
func (f *fencer) hurried(ctx context.Context, source *fencingv1.FenceSource) bool {
	if sharesAddress(source) {
		other, err := f.sameSwitch(ctx, source)
		return err == nil && other == nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	due := f.hurries[source.Name]
	delete(f.hurries, source.Name)
	return due
}
