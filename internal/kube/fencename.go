package kube

import (
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strings"

	fencingv1 "belay.dev/belay/api/fencing/v1alpha1"
	"belay.dev/belay/internal/fencing"
)

// A NodeFence is about one boot of one machine, and several machines may have had the name of a node: an earlier one may still wait for evidence when a
// later one falls silent. The first of them has the name of the node, so that people find it.

// maxName is the longest name of an object, and fenceSuffix the length of what is added to a node's for the fence of another machine, as the CRD allows.
const maxName, fenceSuffix = 253, 1 + 16

// FenceNames are the names that the NodeFence of a boot may have: that of the node, and one that no other machine of the node has.
func FenceNames(b fencing.Boot) [2]string {
	sum := sha256.Sum256([]byte(b.Node + "/" + b.Machine))
	node := strings.TrimRight(b.Node[:min(len(b.Node), maxName-fenceSuffix)], ".-")
	return [2]string{b.Node, node + "." + hex.EncodeToString(sum[:])[:fenceSuffix-1]}
}

// FenceStands reports whether a NodeFence is not over and is about the machine that shows a boot, as far as is known: then no other one begins for it. An
// earlier boot of the machine counts, since its fence sees the later one.
func FenceStands(f *fencingv1.NodeFence, shown fencing.Boot) bool {
	return !FenceFinished(f) && f.Spec.NodeName == shown.Node && !shown.Replaces(FencedBoot(f))
}

// StandingFence returns the fence that stands for a boot, nil for none.
func StandingFence(fences []*fencingv1.NodeFence, shown fencing.Boot) *fencingv1.NodeFence {
	if i := slices.IndexFunc(fences, func(f *fencingv1.NodeFence) bool { return FenceStands(f, shown) }); i >= 0 {
		return fences[i]
	}
	return nil
}

// LatestFence returns the fence of a node that is not over, or else the record of one that is: the one with the highest epoch. nil for none.
func LatestFence(fences []*fencingv1.NodeFence, node string) (latest *fencingv1.NodeFence) {
	for _, f := range fences {
		if f.Spec.NodeName != node {
			continue
		}
		over := FenceFinished(f)
		if latest == nil || over == FenceFinished(latest) && f.Spec.Epoch > latest.Spec.Epoch || !over && FenceFinished(latest) {
			latest = f
		}
	}
	return latest
}

// FencePlace is where the next NodeFence of a boot has its place.
type FencePlace struct {
	Name string
	// Epoch is the highest of the node's fences so far, zero for none.
	Epoch int64
	// Over are the records of fences of the node, or of the name, that are over: that of the name makes room, and none of the others is of use.
	Over []*fencingv1.NodeFence
}

// PlaceFence finds the place, among all NodeFences. It is false while a fence stands for the boot.
func PlaceFence(fences []*fencingv1.NodeFence, boot fencing.Boot) (FencePlace, bool) {
	if StandingFence(fences, boot) != nil {
		return FencePlace{}, false
	}
	place, taken := FencePlace{}, map[string]bool{}
	for _, f := range fences {
		taken[f.Name] = !FenceFinished(f)
		if f.Spec.NodeName != boot.Node {
			continue
		}
		place.Epoch = max(place.Epoch, f.Spec.Epoch)
		if FenceFinished(f) {
			place.Over = append(place.Over, f)
		}
	}
	for _, name := range FenceNames(boot) {
		if place.Name == "" && !taken[name] {
			place.Name = name
		}
	}
	for _, f := range fences { // the name of a node may be that of a fence of another one: dots and digits are allowed in both
		if f.Name == place.Name && f.Spec.NodeName != boot.Node {
			place.Over = append(place.Over, f)
		}
	}
	return place, place.Name != ""
}
