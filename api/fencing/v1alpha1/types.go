package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// NodeFence records that one boot of one node is being fenced: what is known, what is proven, and what was done about it. Its name is that
// of the node, or that and a suffix of the machine, while the fence of another machine of the name is not over. It outlives the Node object.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,shortName=nf
// +kubebuilder:printcolumn:name="Phase",type=string,JSONPath=`.status.phase`
// +kubebuilder:printcolumn:name="Evidence",type=string,JSONPath=`.status.conditions[?(@.type=="Proven")].reason`
// +kubebuilder:printcolumn:name="Missing",type=string,JSONPath=`.status.missing[0]`
// +kubebuilder:printcolumn:name="Epoch",type=integer,JSONPath=`.spec.epoch`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:validation:XValidation:rule="self.metadata.name == self.spec.nodeName || (self.metadata.name.matches('^.+[.][0-9a-f]{16}$') && (self.spec.nodeName + '.' == self.metadata.name.substring(0, size(self.metadata.name) - 16) || size(self.spec.nodeName) > 236 && self.spec.nodeName.startsWith(self.metadata.name.substring(0, size(self.metadata.name) - 17))))",message="the name of a NodeFence is that of its node, or that and 16 hexadecimal digits after a dot"
// +kubebuilder:validation:XValidation:rule="!has(self.status) || !has(self.status.phase) || self.status.phase != 'Evicting' || (has(oldSelf.status) && has(oldSelf.status.phase) && oldSelf.status.phase == 'Evicting') || (has(self.status.evidence) && self.status.evidence.exists(e, has(e.class) && e.class == 'PoweredOff' && e.bootID == self.spec.bootID)) || (has(self.spec.statement) && self.spec.statement.machineID == self.spec.machineID)",message="nothing is evicted or detached without evidence of this boot, or a statement about its machine"
// +kubebuilder:validation:XValidation:rule="!has(self.status) || !has(self.status.phase) || self.status.phase in ['Suspected', 'Isolating', 'Cancelled'] || (has(oldSelf.status) && has(oldSelf.status.phase))",message="a fence begins with Suspected, Isolating or Cancelled"
type NodeFence struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   NodeFenceSpec   `json:"spec"`
	Status NodeFenceStatus `json:"status,omitempty"`
}

// NodeFenceList is a list of NodeFences.
//
// +kubebuilder:object:root=true
type NodeFenceList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []NodeFence `json:"items"`
}

// NodeFenceSpec says which boot is fenced, and what people say about it.
//
// +kubebuilder:validation:XValidation:rule="self.nodeName == oldSelf.nodeName && self.nodeUID == oldSelf.nodeUID && self.bootID == oldSelf.bootID && self.machineID == oldSelf.machineID && self.epoch == oldSelf.epoch && self.trigger == oldSelf.trigger && has(self.request) == has(oldSelf.request) && (!has(self.request) || self.request == oldSelf.request) && has(self.lastRenewal) == has(oldSelf.lastRenewal) && (!has(self.lastRenewal) || self.lastRenewal == oldSelf.lastRenewal)",message="only statement and release change: a fence is about one boot"
// +kubebuilder:validation:XValidation:rule="(has(self.trigger) && self.trigger == 'Requested') == has(self.request)",message="spec.request is there if, and only if, spec.trigger is Requested"
type NodeFenceSpec struct {
	// NodeName is the name of the Node.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	NodeName string `json:"nodeName"`
	// NodeUID is the UID of the Node object when it was suspected.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	NodeUID string `json:"nodeUID"`
	// BootID is status.nodeInfo.bootID of the boot that is fenced.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=128
	BootID string `json:"bootID"`
	// MachineID is status.nodeInfo.systemUUID of the machine.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=128
	MachineID string `json:"machineID"`
	// Epoch is higher than that of every earlier fence of the node, and no lower than the time in seconds at which the fence began. The taint that the fence sets has the value belay-EPOCH.
	// +kubebuilder:validation:Minimum=1
	Epoch int64 `json:"epoch"`
	// Trigger is why the fence began: the node was silent, a person or a BelayRemediation asked for it besides, or the Node was deleted while VolumeAttachments of the
	// boot were left. The machine of a deleted Node is asked for its power state, and never switched off.
	// +kubebuilder:default=NodeSilent
	// +optional
	Trigger Trigger `json:"trigger,omitempty"`
	// Request says who asked for the power-off, and why. It is there if the trigger is Requested.
	// +optional
	Request *Request `json:"request,omitempty"`
	// LastRenewal is what the node's lease said when the node was suspected. A lease that says something else is a sign of life.
	// +kubebuilder:validation:MaxLength=512
	// +optional
	LastRenewal string `json:"lastRenewal,omitempty"`
	// Statement is what a person says about the machine. It takes the place of a power switch.
	// +optional
	Statement *Statement `json:"statement,omitempty"`
	// Release says who releases the node when it is back: belay (Auto), or the person who deletes the NodeFence (Manual).
	// +kubebuilder:default=Auto
	// +optional
	Release ReleasePolicy `json:"release,omitempty"`
}

// Trigger is why a fence began.
//
// +kubebuilder:validation:Enum=NodeSilent;NodeDeleted;Requested;Remediation
type Trigger string

// The triggers.
const (
	TriggerNodeSilent  Trigger = "NodeSilent"
	TriggerNodeDeleted Trigger = "NodeDeleted"
	TriggerRequested   Trigger = "Requested"
	TriggerRemediation Trigger = "Remediation"
)

// Request is a person's request to switch the machine of a silent node off. An admission policy makes sure that By is the user who wrote it.
type Request struct {
	// By is the name of the user.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	By string `json:"by"`
	// Reason is why.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=512
	Reason string `json:"reason"`
}

// ReleasePolicy says who releases a node that is back.
//
// +kubebuilder:validation:Enum=Auto;Manual
type ReleasePolicy string

// The release policies.
const (
	ReleaseAuto   ReleasePolicy = "Auto"
	ReleaseManual ReleasePolicy = "Manual"
)

// Statement is a person's word that a machine is off, or destroyed. An admission policy makes sure that By is the user who wrote it.
type Statement struct {
	// By is the name of the user.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	By string `json:"by"`
	// Reason is how the person knows.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=1024
	Reason string `json:"reason"`
	// MachineID is the system UUID of the machine that the person means. It must be that of the fence.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=128
	MachineID string `json:"machineID"`
	// Expires is when the statement stops to count.
	Expires metav1.Time `json:"expires"`
}

// Phase is where a fence stands.
//
// +kubebuilder:validation:Enum=Suspected;Isolating;Fencing;Tainting;Evicting;Detaching;Moved;Releasing;Released;Cancelled
type Phase string

// NodeFenceStatus is what is known, and what was done.
//
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.phase) || has(self.phase)",message="a phase is not taken back"
type NodeFenceStatus struct {
	// Phase is where the fence stands. Each is stored before what it permits is done.
	// +kubebuilder:validation:XValidation:rule="self == oldSelf || self in {'Suspected': ['Isolating', 'Cancelled'], 'Isolating': ['Fencing', 'Cancelled'], 'Fencing': ['Tainting', 'Releasing', 'Cancelled'], 'Tainting': ['Evicting', 'Fencing', 'Releasing'], 'Evicting': ['Detaching', 'Releasing'], 'Detaching': ['Moved', 'Releasing'], 'Moved': ['Releasing'], 'Releasing': ['Released'], 'Released': [], 'Cancelled': []}[oldSelf]",message="this phase does not follow the one before"
	// +optional
	Phase Phase `json:"phase,omitempty"`
	// Intents are the commands that were about to be sent, the latest last.
	// +kubebuilder:validation:MaxItems=8
	// +listType=atomic
	// +optional
	Intents []Intent `json:"intents,omitempty"`
	// Question is what the fencer is asked, besides the intents. The fencer answers in evidence, with the nonce.
	// +optional
	Question *Question `json:"question,omitempty"`
	// Evidence is what the power switch answered, the latest last. The fencer alone writes it, but for a copy of the statement that the actor used. It is a record: what authorizes is asked again.
	// +kubebuilder:validation:MaxItems=32
	// +listType=atomic
	// +optional
	Evidence []Evidence `json:"evidence,omitempty"`
	// Missing is what the fence waits for.
	// +kubebuilder:validation:MaxItems=16
	// +listType=atomic
	// +optional
	Missing []string `json:"missing,omitempty"`
	// Advice is what a person can do about that.
	// +kubebuilder:validation:MaxLength=2048
	// +optional
	Advice string `json:"advice,omitempty"`
	// TaintValue is the value of the fence's taints, belay-EPOCH.
	// +kubebuilder:validation:MaxLength=63
	// +optional
	TaintValue string `json:"taintValue,omitempty"`
	// Untainted is when the out-of-service taint was removed.
	// +optional
	Untainted *metav1.Time `json:"untainted,omitempty"`
	// SilentAgain is set when the node renewed its lease and then fell silent again while its volumes may be mounted: what its lease says since
	// then takes the place of spec.lastRenewal, and a statement counts only if it was written later.
	// +optional
	SilentAgain *SilentAgain `json:"silentAgain,omitempty"`
	// Statement records when the statement of the spec was written, as it was when it was first seen.
	// +optional
	Statement *StatementRecord `json:"statement,omitempty"`
	// Conditions are Proven, Tainted, StorageFenced, VolumesReleased, Contradicted, UpstreamForces and Ended.
	// +kubebuilder:validation:MaxItems=16
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// SilentAgain is a silence after a sign of life.
type SilentAgain struct {
	// Renewal is what the node's lease said.
	// +kubebuilder:validation:MaxLength=512
	Renewal string `json:"renewal"`
	// Time is when the node had been silent for its whole limit.
	Time metav1.MicroTime `json:"time"`
}

// StatementRecord is about a statement with an expiry. A later write of another field would make the API server's own record of its age younger.
type StatementRecord struct {
	// Expires is that of the statement.
	Expires metav1.Time `json:"expires"`
	// Made is when the statement was written, by the clock of the API server.
	// +optional
	Made metav1.Time `json:"made,omitempty"`
}

// Intent is a command to a power switch, stored before it is sent.
type Intent struct {
	// Action is Off.
	// +kubebuilder:validation:Enum="Off"
	Action string `json:"action"`
	// Nonce names the command: it is sent at most once, and evidence with the nonce is its answer.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	Nonce string `json:"nonce"`
	// NotAfter is by when the command has been carried out or is lost.
	NotAfter metav1.MicroTime `json:"notAfter"`
	// Renewal is what the node's lease said when the command was stored. It is not sent once the lease says something else.
	// +kubebuilder:validation:MaxLength=512
	// +optional
	Renewal string `json:"renewal,omitempty"`
	// SentBy is the fencer that is about to send it. Deprecated: status.command of the FenceSource has it, which no other part can write.
	// +kubebuilder:validation:MaxLength=253
	// +optional
	SentBy string `json:"sentBy,omitempty"`
}

// Question asks for the power state and the identity of the hardware.
type Question struct {
	// Nonce names the question.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	Nonce string `json:"nonce"`
	// Time is when it was asked.
	Time metav1.MicroTime `json:"time"`
}

// Evidence is one answer.
type Evidence struct {
	// Class is what the answer proves about the boot, once it is confirmed in the order of the phases; empty if it proves nothing.
	// +kubebuilder:validation:Enum=PoweredOff;StorageFenced;Restarted;Stated
	// +optional
	Class string `json:"class,omitempty"`
	// Power is what a power switch said.
	// +kubebuilder:validation:Enum="On";"Off";Unknown
	// +optional
	Power string `json:"power,omitempty"`
	// Source is who answered: the name of a power switch, a driver, or a user.
	// +kubebuilder:validation:MaxLength=253
	// +optional
	Source string `json:"source,omitempty"`
	// BootID is the boot that the answer is about.
	// +kubebuilder:validation:MaxLength=128
	BootID string `json:"bootID"`
	// MachineID is the identity that the hardware gave.
	// +kubebuilder:validation:MaxLength=128
	// +optional
	MachineID string `json:"machineID,omitempty"`
	// Nonce is that of the question or the intent.
	// +kubebuilder:validation:MaxLength=64
	// +optional
	Nonce string `json:"nonce,omitempty"`
	// Time is when the answer came.
	Time metav1.MicroTime `json:"time"`
	// TookMilliseconds is how long the fencer asked until it had the power state, which is that much younger than the question.
	// +kubebuilder:validation:Minimum=0
	// +optional
	TookMilliseconds int64 `json:"tookMilliseconds,omitempty"`
	// Raw is the text of the answer, without secrets.
	// +kubebuilder:validation:MaxLength=1024
	// +optional
	Raw string `json:"raw,omitempty"`
}
