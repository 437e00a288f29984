package explain

import (
	"maps"

	"belay.dev/belay/internal/decision"
	"belay.dev/belay/internal/nodevolume"
	"belay.dev/belay/internal/publication"
)

func init() { maps.Copy(guides, waitGuides) }

// ClaimNotReady is the reason while a pod's claims or PersistentVolumes cannot all be read on its node, or do not match.
const ClaimNotReady decision.Reason = "ClaimNotReady"

// Why no command answers with these.
const (
	inErrors = "no object has it: the answer is the error of the VolumeAttachment, or that its attacher has not answered"
	inMounts = "the event of belay-node has it: the answer is MountFailing or UnmountFailing, with the text of that event"
)

// waitGuides are the reasons of belay-attacher and belay-node that their metrics, logs and events name.
var waitGuides = map[decision.Reason]Guide{
	publication.RecordingFailed:   {Title: "The API server does not accept a write about the VolumeAttachment", Page: pageAttacher, Silence: inLog, Unanswered: inErrors},
	publication.RequestImpossible: {Title: "Something that a request needs is missing or wrong", Page: pageAttacher, Silence: onObject, Unanswered: inErrors},
	publication.BackingOff:        {Title: "The last attempt failed, and the next one is due later", Page: pageAttacher, Event: FailedMount, Unanswered: inErrors},
	publication.DetachRequested:   {Title: "The controller is about to delete the VolumeAttachment", Page: pageAttacher, Silence: inLog, Unanswered: inErrors},
	publication.ShuttingDown:      {Title: "The attacher is shutting down", Page: pageAttacher, Silence: inLog, Unanswered: inErrors},

	nodevolume.UnaccountedMount:         {Title: "The volume may be mounted on this node without a record", Page: pageNodeAgent, Event: FailedMount, Unanswered: inMounts},
	nodevolume.StillMountedElsewhere:    {Title: "Another process on the node has the volume mounted", Page: pageNodeAgent, Event: FailedUnmount, Unanswered: inMounts},
	nodevolume.ContainersMayRun:         {Title: "The pod is deleted or has ended, and its containers may still run", Page: pageNodeAgent, Event: FailedUnmount, Unanswered: inMounts},
	nodevolume.AttachmentReplaced:       {Title: "The volume was attached again while it is staged with the earlier VolumeAttachment", Page: pageNodeAgent, Event: FailedMount, Unanswered: inMounts},
	nodevolume.DriverNotRegistered:      {Title: "The driver is not registered on this node", Page: pageNodeAgent, Event: FailedMount, Unanswered: inMounts},
	nodevolume.NotAttached:              {Title: "The Node does not list the volume as attached", Page: pageNodeAgent, Event: FailedMount, Unanswered: inMounts},
	nodevolume.AttachmentNotReady:       {Title: "The VolumeAttachment does not exist or is not attached", Page: pageNodeAgent, Event: FailedMount, Unanswered: inMounts},
	nodevolume.OtherPodMounted:          {Title: "Another pod has the ReadWriteOncePod volume mounted", Page: pageNodeAgent, Event: FailedMount, Unanswered: inMounts},
	nodevolume.OtherSELinuxLabelWanted:  {Title: "Another pod uses the volume with another SELinux label", Page: pageNodeAgent, Event: FailedMount, Unanswered: inMounts},
	nodevolume.OtherSELinuxLabelMounted: {Title: "The volume is still mounted with the SELinux label of a deleted pod", Page: pageNodeAgent, Event: FailedMount, Unanswered: inMounts},
	ClaimNotReady:                       {Title: "A claim of the pod is not bound or cannot be read", Page: pageNodeAgent, Event: FailedMount, Unanswered: inMounts},
	nodevolume.InUseNotCleared:          {Title: "The volume is unmounted, and the Node still lists it in use", Page: pageNodeAgent, Event: FailedUnmount, Unanswered: inMounts},
	nodevolume.NotReportedInUse:         {Title: "The Node does not list the volume in use yet", Page: pageNodeAgent, Event: FailedMount, Unanswered: inMounts},
	nodevolume.AttachabilityUnknown:     {Title: "The CSIDrivers have not been listed yet", Page: pageNodeAgent, Event: FailedMount, Unanswered: inMounts},
	nodevolume.OwnerSilent:              {Title: "A pod is known only from a record, and its object has not been read", Page: pageNodeAgent, Event: FailedUnmount, Unanswered: inMounts},
}
