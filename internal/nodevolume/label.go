package nodevolume

// A volume is mounted with one SELinux label at a time (mount option context=, KEP-1710). The kernel refuses a second mount of a
// file system with another label, and a bind mount has the label of its source. So publishes and the stage with one label are
// undone before anything is mounted with another. Pods that run, or may run, keep what they have, even if the CSIDriver has
// changed.

// label is the label that the pod's volume should be mounted with.
func (p Pod) label() string {
	if p.Publish == Confirmed || p.Inherited {
		return p.PublishedLabel
	}
	return p.Label
}

// labelDiffers: the label is not the pod's. That is unknown until the CSIDrivers have been listed, because they show which drivers
// mount with labels.
func (c *decider) labelDiffers(p Pod, label string) bool {
	return c.observed.AttachRequired != Unknown && p.label() != label
}

// needsStage: the stage must not be undone because of the pod.
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

// mayBePublishedWithOtherLabel: an uncertain publish for the pod may have another label.
func (c *decider) mayBePublishedWithOtherLabel(p Pod) bool {
	return p.Publish == Uncertain && c.labelDiffers(p, p.PublishedLabel)
}
