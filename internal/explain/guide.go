package explain

import "belay.dev/belay/internal/decision"

// Step is something that a person can do.
type Step struct {
	Text string `json:"text"`
	// Command can be copied to a shell; empty if there is none.
	Command string `json:"command,omitempty"`
	// Danger is what goes wrong if the step is taken too early; empty for a safe step.
	Danger string `json:"danger,omitempty"`
}

// Situation holds the names that a guide fills in. An empty field is unknown or must not be named.
type Situation struct {
	Answer
	Pod, Namespace   string // the pod that waits
	Bare             bool   // no controller has created that pod, so none creates it again
	Claim, Volume    string // the claim and the PersistentVolume
	Driver           string
	Node             string // the node that has the volume
	Wanted           string // the node of the pod that waits
	Attachment       string // the VolumeAttachment that it is about
	NodeID           string // the CSI node ID that it records
	Holder           string // the pod that uses the volume, as "name" or "namespace/name"
	HolderNamespace  string
	HolderName       string
	HolderOwner      string      // "Deployment/web"
	HolderState      string      // its phase, or "Terminating"
	Leaving          string      // the pod that is being deleted and has ended, whose volume is still mounted
	NotInstalled     bool        // the driver is not installed in the cluster
	UID              string      // of the pod that is being deleted
	UpstreamRuns     bool        // kube-controller-manager holds its lease
	MadeBy           string      // the provisioner that has made the PersistentVolume
	Silent           bool        // the kubelet of the node of the pod that waits reports nothing
	Rebooted         string      // when the node rebooted, as its kubelet reports
	Detail           string      // an error of a component, or a number
	Ends             string      // why a fence ends before it took anything
	Own              PodVolume   // the volume as the pod's spec has it
	Mount            *MountCause // what a text of kubelet about it means
	Container        string      // the container that waits
	Waits            Elsewhere   // what the pod waits for that is no volume
	PullSecrets      string      // the Secrets for its images that kubelet could not read
	LeaseNamespace   string      // of the attacher
	AttacherPod      string      // the holder of the attacher's lease, if a pod of that name exists
	FenceIsAvailable bool

	Class, Provisioner                      string // of a claim
	AClass                                  string // the only StorageClass that provisions, for a claim without one
	ProvisionerPod                          string // where its provisioner runs: a pod, or a machine whose network it has
	ProvisionerNamespace                    string // of that pod, if it was read
	SourceKind, SourceName, SourceNamespace string // what a claim is to be filled from, as kubectl takes it
	Size, HasSize                           string // what a claim asks for, and what it has
	NotAgain                                string // why a pod that uses the claim could not have its volume again if it were ended
	OffNode                                 string // the node that lacks the driver, if that is why
	Ephemeral                               bool   // the claim is one of a generic ephemeral volume
	Policy                                  string // the reclaim policy of the volume; empty if it was not read
	HolderEnded                             bool   // the pod that uses the volume has ended
	Workload                                string // the owner of pods, as kubectl takes it
	Cause                                   Cause  // what of several causes of a reason it is
}

// Cause is one of several causes of a reason, which differ in the next step.
type Cause string

// The causes: of a claim without a volume, of one that is not bound to the volume that it names, and of one that ends or grows.
const (
	NoClass              Cause = "NoClass"              // it names no StorageClass
	NoDynamicClass       Cause = "NoDynamicClass"       // it names the class "", which provisions nothing
	MadeByHand           Cause = "MadeByHand"           // nothing provisions a volume of its class
	PerhapsByHand        Cause = "PerhapsByHand"        // its volume is a disk or a path of a node, and its class is unknown
	ClassMissing         Cause = "ClassMissing"         // its StorageClass does not exist
	NodeWithoutScheduler Cause = "NodeWithoutScheduler" // its pod has a node that the scheduler did not choose
	NoTopology           Cause = "NoTopology"           // no topology of the driver fits
	NodeNotChosen        Cause = "NodeNotChosen"        // its class does not wait for a node, which its provisioner needs
	SourceNotReady       Cause = "SourceNotReady"       // the snapshot or claim that it is to be filled from
	SecretOfClass        Cause = "SecretOfClass"        // a Secret that its StorageClass names
	WrongParameters      Cause = "WrongParameters"      // the driver refuses what the StorageClass or the claim asks for
	NotSupported         Cause = "NotSupported"         // the driver cannot do what the claim asks for
	StorageExhausted     Cause = "StorageExhausted"     // a quota, or the storage is full
	StorageRefuses       Cause = "StorageRefuses"       // the driver's identity lacks a permission
	DriverSilent         Cause = "DriverSilent"         // the driver gives no answer in time
	KeyUnusable          Cause = "KeyUnusable"          // the storage cannot use the key for the volume
	AttemptRepeated      Cause = "AttemptRepeated"      // an earlier attempt had other parameters, or its volume is gone
	PolicyMissing        Cause = "PolicyMissing"        // the storage has no policy of the name in the StorageClass
	NoDatastore          Cause = "NoDatastore"          // no datastore fits
	ExportNotWritable    Cause = "ExportNotWritable"    // a file server does not let the provisioner write
	ServerRefuses        Cause = "ServerRefuses"        // a file server does not answer the provisioner, or refuses it
	CredentialsMissing   Cause = "CredentialsMissing"   // the driver has none
	StorageUnreachable   Cause = "StorageUnreachable"   // the driver does not reach the storage
	CertificateRefused   Cause = "CertificateRefused"   // the driver does not trust the storage's certificate
	BoundToAnother       Cause = "BoundToAnother"
	BoundToDeleted       Cause = "BoundToDeleted" // to a claim that does not exist any more
	OtherClass           Cause = "OtherClass"
	HeldBySnapshot       Cause = "HeldBySnapshot"
	ControllerResizes    Cause = "ControllerResizes" // the next step is the controller's
	NodeResizes          Cause = "NodeResizes"       // the next step is kubelet's
	SizeRefused          Cause = "SizeRefused"
	VolumesStay          Cause = "VolumesStay"   // kubelet has not removed the volumes of a pod whose containers have ended
	HasFinalizers        Cause = "HasFinalizers" // a pod that is being deleted has some

	// Of a volume that a node cannot set up, or a container not get.
	DriverMissing     Cause = "DriverMissing"     // its driver is not installed
	ModeDiffers       Cause = "ModeDiffers"       // it is a device, and wanted as a file system, or the other way round
	LifecycleDiffers  Cause = "LifecycleDiffers"  // its driver does not allow it in a pod's spec, or only there
	KindUnknown       Cause = "KindUnknown"       // kubelet has no plugin for it
	KindRemoved       Cause = "KindRemoved"       // kubelet does not set up this kind any more
	MountOptions      Cause = "MountOptions"      // its PersistentVolume has mount options
	NodeExcluded      Cause = "NodeExcluded"      // its node affinity excludes the node
	LabelsDiffer      Cause = "LabelsDiffer"      // two pods want it with different SELinux labels
	MediumUnusable    Cause = "MediumUnusable"    // its medium does not fit the pod
	SubPathUnusable   Cause = "SubPathUnusable"   // its subPath cannot be made or entered
	LabelRefused      Cause = "LabelRefused"      // it takes no SELinux label
	MountPathUnusable Cause = "MountPathUnusable" // a file and a directory do not fit
	MountDead         Cause = "MountDead"         // it is mounted, and what serves the mount is gone
)

// Why is which of several causes of its reason a situation has; empty for a reason that has one.
func (s Situation) Why() Cause {
	if s.Mount != nil && s.Mount.text.cause != "" {
		return s.Mount.text.cause
	}
	return s.Cause
}

// Guide is the row of a reason: what a reader has to know about it, and where the rest is.
type Guide struct {
	// Title says in a few words what the reason means.
	Title string
	// Page is the page of docs/runbooks that has its section.
	Page Page
	// Verdict is empty for a reason that blocks.
	Verdict Verdict
	// Event is the reason of the event that reports it, or Silence is why there is none.
	Event, Silence string
	// Unanswered is why no command answers with it; empty for a reason that explain, evidence or orphans gives.
	Unanswered string
	// Summary is one sentence about this situation.
	// Without it, the reason is named.
	Summary func(Situation) string
	// Next are the steps, the safest first. Without it there are none.
	Next func(Situation) []Step
}

// DefaultClass is the annotation of the StorageClass of claims that name none (k/k v1.36.3 pkg/apis/storage/util/helpers.go IsDefaultStorageClassAnnotation).
const DefaultClass = "storageclass.kubernetes.io/is-default-class"

// FailedCreate is the reason of the event of a controller that cannot create a pod or its claim (k/k v1.36.3 pkg/controller/controller_utils.go:416).
const FailedCreate = "FailedCreate"

// VolumeFailedDelete is the reason of the event of a PersistentVolume that its provisioner cannot delete at the storage (k/k v1.30.14 to v1.37.2
// pkg/controller/volume/events/event.go:27; sig-storage-lib-external-provisioner v11.0.1 controller/controller.go:1570, v13.0.0 :1634).
const VolumeFailedDelete = "VolumeFailedDelete"

// Reasons that only a diagnosis gives. The others are those of the deciders.
const (
	// PodUnschedulable: the scheduler finds no node, for a cause other than its volumes.
	PodUnschedulable decision.Reason = "PodUnschedulable"
	// ClaimMissing: the pod's claim does not exist.
	ClaimMissing decision.Reason = "ClaimMissing"
	// ClaimNotBound: the claim has no PersistentVolume yet.
	ClaimNotBound decision.Reason = "ClaimNotBound"
	// ProvisioningFailed: the provisioner of the claim, or its driver, fails.
	ProvisioningFailed decision.Reason = "ProvisioningFailed"
	// ProvisionerNotRunning: no component provisions the claim.
	ProvisionerNotRunning decision.Reason = "ProvisionerNotRunning"
	// NoVolumeToBind: the class of the claim provisions nothing, or not where the pod fits, and no PersistentVolume fits.
	NoVolumeToBind decision.Reason = "NoVolumeToBind"
	// NotEnoughStorage: no node has enough free storage for the claim.
	NotEnoughStorage decision.Reason = "NotEnoughStorage"
	// VolumeMismatch: the claim is not bound to the PersistentVolume that it names, because that does not fit.
	VolumeMismatch decision.Reason = "VolumeMismatch"
	// EphemeralClaimNotOwned: a claim has the name of that of a generic ephemeral volume, and is not the pod's.
	EphemeralClaimNotOwned decision.Reason = "EphemeralClaimNotOwned"
	// VolumeNodeGone: the data of the volume is on a node that does not exist.
	VolumeNodeGone decision.Reason = "VolumeNodeGone"
	// ClaimTerminating: the claim is being deleted, and a finalizer keeps it.
	ClaimTerminating decision.Reason = "ClaimTerminating"
	// VolumeTerminating: no claim uses the volume any more, and it is not deleted yet.
	VolumeTerminating decision.Reason = "VolumeTerminating"
	// VolumeDeleteFailed: the volume cannot be deleted at the storage.
	VolumeDeleteFailed decision.Reason = "VolumeDeleteFailed"
	// ResizePending: the volume of a claim is to grow, and a component has not done its part.
	ResizePending decision.Reason = "ResizePending"
	// ResizeFailed: the volume of a claim is to grow, and that fails.
	ResizeFailed decision.Reason = "ResizeFailed"
	// CSIDriverMissing: a driver that needs no attach has no CSIDriver object that says so.
	CSIDriverMissing decision.Reason = "CSIDriverMissing"
	// PodNotCreated: the owner of pods cannot create one.
	PodNotCreated decision.Reason = "PodNotCreated"
	// PersistentVolumeMissing: the claim is bound to a PersistentVolume that does not exist.
	PersistentVolumeMissing decision.Reason = "PersistentVolumeMissing"
	// VolumeOfAnotherNamespace: the pod names a volume in its spec whose PersistentVolume is bound to a claim of another namespace.
	VolumeOfAnotherNamespace decision.Reason = "VolumeOfAnotherNamespace"
	// ReadWriteOncePodInUse: another pod uses a claim that only one pod may use.
	ReadWriteOncePodInUse decision.Reason = "ReadWriteOncePodInUse"
	// VolumeTopologyConflict: no node fits the pod from which its volume can be reached.
	VolumeTopologyConflict decision.Reason = "VolumeTopologyConflict"
	// AttachLimitReached: the node has as many volumes as its driver allows.
	AttachLimitReached decision.Reason = "AttachLimitReached"
	// OrphansFillNode: the limit is reached, and by VolumeAttachments that no pod needs.
	OrphansFillNode decision.Reason = "OrphansFillNode"
	// HeldByRunningPod: another pod, on another node, uses the volume and is meant to.
	HeldByRunningPod decision.Reason = "HeldByRunningPod"
	// HeldByTerminatingPod: the pod that has the volume is being deleted and still runs.
	HeldByTerminatingPod decision.Reason = "HeldByTerminatingPod"
	// RollingUpdateDeadlock: a Deployment starts its new pod before it ends the old one, which has the volume.
	RollingUpdateDeadlock decision.Reason = "RollingUpdateDeadlock"
	// NodeNotReady: the node that has the volume does not work, or cannot be reached.
	NodeNotReady decision.Reason = "NodeNotReady"
	// NodeSilent: the node that has the volume still counts as Ready, and its kubelet is silent.
	NodeSilent decision.Reason = "NodeSilent"
	// NodeOutOfService: the node that has the volume is not Ready and was declared out of service.
	NodeOutOfService decision.Reason = "NodeOutOfService"
	// UnmountFailing: the node is Ready, no pod needs the volume there, and it stays mounted.
	UnmountFailing decision.Reason = "UnmountFailing"
	// NoAttachController: no controller creates the VolumeAttachment.
	NoAttachController decision.Reason = "NoAttachController"
	// NoDetachController: no controller deletes a VolumeAttachment that no pod needs.
	NoDetachController decision.Reason = "NoDetachController"
	// AttacherNotRunning: no attacher of the driver works on its VolumeAttachments.
	AttacherNotRunning decision.Reason = "AttacherNotRunning"
	// DriverUnavailable: the attacher does not reach the driver, or the driver does not answer.
	DriverUnavailable decision.Reason = "DriverUnavailable"
	// DriverRemoved: the driver was uninstalled while its finalizer is still on the VolumeAttachment.
	DriverRemoved decision.Reason = "DriverRemoved"
	// MachineUnknown: the driver answers NOT_FOUND to the detach from a node that was deleted.
	MachineUnknown decision.Reason = "MachineUnknown"
	// SecretMissing: a Secret that the driver needs does not exist or must not be read.
	SecretMissing decision.Reason = "SecretMissing"
	// DriverNotOnNode: the driver has not registered on the node.
	DriverNotOnNode decision.Reason = "DriverNotOnNode"
	// BackendDisagrees: the storage says that the volume is attached where Kubernetes knows of no attachment.
	BackendDisagrees decision.Reason = "BackendDisagrees"
	// NotReported: the volume is attached, and the Node does not list it in status.volumesAttached.
	NotReported decision.Reason = "NotReported"
	// MountFailing: the volume is attached, and the node fails to mount it.
	MountFailing decision.Reason = "MountFailing"
	// VolumeSourceMissing: the volume refers to an object that does not exist, or not yet.
	VolumeSourceMissing decision.Reason = "VolumeSourceMissing"
	// NodePathUnusable: the volume is a path of the node that is missing, or is no such path.
	NodePathUnusable decision.Reason = "NodePathUnusable"
	// NodeProgramMissing: a program that mounts volumes of this kind is not installed on the node.
	NodeProgramMissing decision.Reason = "NodeProgramMissing"
	// StorageServerFailing: the node gets no answer from the server of the storage, or is refused.
	StorageServerFailing decision.Reason = "StorageServerFailing"
	// VolumeUnsupported: the node cannot set up a volume of this kind, or not as the pod wants it.
	VolumeUnsupported decision.Reason = "VolumeUnsupported"
	// ContainerMountFailing: the volume is mounted, and a container cannot get it.
	ContainerMountFailing decision.Reason = "ContainerMountFailing"
	// NotVolume: the pod waits for something else than its volumes.
	NotVolume decision.Reason = "NotVolume"
	// Mounting: the volume is attached, and the node mounts it.
	Mounting decision.Reason = "Mounting"
	// OwnershipChanging: the node gives the files of the volume to the pod's fsGroup, one after the other.
	OwnershipChanging decision.Reason = "OwnershipChanging"
	// Scheduling: the scheduler has not chosen a node yet.
	Scheduling decision.Reason = "Scheduling"
	// PodOnLostNode: the pod is being deleted, and its node is silent.
	PodOnLostNode decision.Reason = "PodOnLostNode"
	// PodNodeNotReady: the node of the pod that waits is not Ready, so its kubelet mounts nothing.
	PodNodeNotReady decision.Reason = "PodNodeNotReady"
	// PodTerminating: the pod is being deleted, and its node works.
	PodTerminating decision.Reason = "PodTerminating"
	// OrphanAttachment: no pod needs the volume on the node, and nothing detaches it.
	OrphanAttachment decision.Reason = "OrphanAttachment"
	// UsedWithoutAttachment: a node uses a volume that no VolumeAttachment shows there.
	UsedWithoutAttachment decision.Reason = "UsedWithoutAttachment"
	// ReportedWithoutAttachment: a Node lists a volume as attached that no VolumeAttachment shows there.
	ReportedWithoutAttachment decision.Reason = "ReportedWithoutAttachment"
	// TwoAttachments: an exclusive volume has VolumeAttachments for several nodes.
	TwoAttachments decision.Reason = "TwoAttachments"
	// PublishedElsewhere: the driver lists a volume for one node at two.
	PublishedElsewhere decision.Reason = "PublishedElsewhere"
	// SharedAttachments: a volume that allows several nodes is attached to several: as it should be.
	SharedAttachments decision.Reason = "SharedAttachments"
	// RecoveryNotRunning: a part of recovery holds no lease.
	RecoveryNotRunning decision.Reason = "RecoveryNotRunning"
	// TaintWithoutFence: a node has taints of a fence that does not exist any more.
	TaintWithoutFence decision.Reason = "TaintWithoutFence"
	// Incomplete: too little could be read for an answer.
	Incomplete decision.Reason = "Incomplete"
)
