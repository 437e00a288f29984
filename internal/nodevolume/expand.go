package nodevolume

// Expand asks the driver to expand the volume where it is published for the pod
// (NodeExpandVolume, KEP-556).
type Expand struct{ Key PublishKey }

func (Expand) step() {}

// Growth is what is known of a volume that has grown.
type Growth struct {
	// Due: the driver has not been asked yet, or has not done it. What the claim says
	// about it is not for this package: a node may expand when the claim allows it.
	Due bool
	// Failure is the last one in a row for the expansion.
	Failure Failure
}

// expand comes last: no pod waits for its mount, or for its end, because another
// one's file system grows. The driver is told of a place where the volume stands,
// and not while a call without an answer may still be changing the stage below it.
func (c *decision) expand() Step {
	if !c.observed.Growth.Due || c.observed.Stage.Phase == Uncertain && c.anyPod(isBroughtUp) {
		return nil
	}
	for _, p := range c.desired.Pods {
		if p.Claim != Wanted || p.Publish != Confirmed || p.ReadOnly {
			continue
		}
		if c.mayCall(p.Key, c.observed.Growth.Failure) {
			return Expand{Key: p.Key}
		}
	}
	return nil
}

// isBroughtUp: the pod wants the volume and has not got it yet.
func isBroughtUp(p Pod) bool { return p.Claim == Wanted && p.Publish != Confirmed }
