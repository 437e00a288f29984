package nodevolume

// A volume is mounted with one SELinux label at a time (the mount option context=, KEP-1710): the
// kernel refuses a second mount of a file system with another one, and what is bound from
// a mount has its label. So what is mounted with one label is undone, publishes and
// stage, before anything is mounted with another. Pods that run keep what they have,
// whatever the CSIDriver says by now, and so do those that may run.

// label is the one that the pod's volume is to be mounted with.
func (p Pod) label() string {
	if p.Publish == Confirmed || p.Inherited {
		return p.PublishedLabel
	}
	return p.Label
}

// labelDiffers: the label is another one than the pod's. Nobody knows that before the
// CSIDrivers have been listed: they say which drivers mount with labels.
func (c *decider) labelDiffers(p Pod, label string) bool {
	return c.observed.AttachRequired != Unknown && p.label() != label
}

// needsStage: the pod keeps the stage from being undone.
func (c *decider) needsStage(p Pod) bool {
	switch {
	case p.Publish != Absent, p.Demand == DemandUnknown, p.Demand == Ending:
		return true
	default:
		return p.Demand == Wanted && !c.labelDiffers(p, c.observed.Stage.Label)
	}
}

// labelGate: nothing may be mounted with another label than the pod's.
func (c *decider) labelGate(p Pod) Reason {
	others := func(is func(Pod) bool) bool {
		return c.anyPod(func(other Pod) bool { return other.Key != p.Key && is(other) })
	}
	staged := c.observed.Stage.Phase != Absent && c.labelDiffers(p, c.observed.Stage.Label)
	published := others(func(other Pod) bool { return other.Publish != Absent && c.labelDiffers(p, other.PublishedLabel) })
	switch {
	case !staged && !published:
		return ""
	case others(func(other Pod) bool { return other.Demand != Released && c.needsStage(other) }):
		return OtherSELinuxLabelWanted
	default:
		return OtherSELinuxLabelMounted
	}
}

// mayBePublishedWithOtherLabel: a publish for the pod may have been made with another label.
func (c *decider) mayBePublishedWithOtherLabel(p Pod) bool {
	return p.Publish == Uncertain && c.labelDiffers(p, p.PublishedLabel)
}
