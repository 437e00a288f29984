package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// FenceSource says which power switch belongs to a node. Its name is that of the node. It counts once the hardware behind it has given the
// node's identity and said On while the node renewed its lease: before that, belay never sends it a command.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,shortName=fs
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="FenceReady")].status`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="FenceReady")].reason`
// +kubebuilder:printcolumn:name="Since",type=date,JSONPath=`.status.conditions[?(@.type=="FenceReady")].lastTransitionTime`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type FenceSource struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   FenceSourceSpec   `json:"spec"`
	Status FenceSourceStatus `json:"status,omitempty"`
}

// FenceSourceList is a list of FenceSources.
//
// +kubebuilder:object:root=true
type FenceSourceList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []FenceSource `json:"items"`
}

// FenceSourceSpec is what people configure.
type FenceSourceSpec struct {
	// Levels are tried in order: the first whose switches all answer counts. A level is a way to switch the machine off for certain, such
	// as its BMC; the next may be the outlets of a PDU that feed it.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=4
	// +listType=atomic
	Levels []FenceLevel `json:"levels"`
}

// FenceLevel is one way to switch a machine off.
type FenceLevel struct {
	// Feeds are the switches that must all be off: one BMC, or every outlet that feeds the machine.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=4
	// +listType=atomic
	Feeds []Feed `json:"feeds"`
}

// Feed is one power switch, and the program that speaks to it.
type Feed struct {
	// Agent is the file name of a program of the fence-agents family, such as fence_ipmilan, or of a command with the same contract
	// (docs/fence-command.md). The fencer runs it from its --recovery-agent-path.
	// +kubebuilder:validation:Pattern=`^fence_[A-Za-z0-9_.-]+$`
	// +kubebuilder:validation:MaxLength=255
	Agent string `json:"agent"`
	// Options are passed to the agent on its standard input. Do not put a password here: see secretRef.
	// +kubebuilder:validation:MaxProperties=32
	// +kubebuilder:validation:XValidation:rule="self.all(k, !(k in ['action', 'nodename', 'port', 'plug', 'password', 'passwd', 'missing_as_off']))",message="action, nodename, port, plug, password, passwd and missing_as_off are not options: use the field plug, and a Secret for the password"
	// +kubebuilder:validation:XValidation:rule="self.all(k, size(k) < 64 && size(self[k]) < 1024 && !self[k].contains('\\n') && !k.contains('\\n'))",message="options have no newlines"
	// +optional
	Options map[string]FeedOption `json:"options,omitempty"`
	// Plug is the outlet, blade or virtual machine, for an agent that switches several.
	// +kubebuilder:validation:MaxLength=253
	// +optional
	Plug string `json:"plug,omitempty"`
	// SecretRef names the Secret whose data are options too, such as username and password. Its annotation fencing.belay.dev/addresses names where it
	// may be sent: hosts, networks, and agents that belay does not know.
	// +optional
	SecretRef *SecretReference `json:"secretRef,omitempty"`
	// OffTested says who tested that this agent says OFF only of a machine that cannot write any more, and how. Without it the Off of an agent counts
	// only if belay knows what the agent calls OFF (docs/recovery/power-switches.md).
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +optional
	OffTested string `json:"offTested,omitempty"`
}

// FeedOption is the value of an option.
//
// +kubebuilder:validation:MaxLength=1024
type FeedOption string

// SecretReference names a Secret.
type SecretReference struct {
	// Namespace of the Secret.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Namespace string `json:"namespace"`
	// Name of the Secret.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`
}

// FenceSourceStatus is what the fencer found out while the node lived.
type FenceSourceStatus struct {
	// Bound is the boot during which the source last said On while the node renewed its lease.
	// +optional
	Bound *Bound `json:"bound,omitempty"`
	// Zone is the zone of the Node as it was while its source was bound for the first time. The brakes of the detector count the nodes of a zone by it.
	// +optional
	Zone *RecordedZone `json:"zone,omitempty"`
	// Power is what the source said when the node was silent.
	// +optional
	Power *PowerState `json:"power,omitempty"`
	// Command is the last command to switch off. It is stored before it is sent: no process sends it twice, and it counts against the brake of the
	// fencer.
	// +optional
	Command *SentCommand `json:"command,omitempty"`
	// Refused has the levels that refused the login, and did not answer since. After three times in a row a level is not asked before its Secrets or the
	// FenceSource change.
	// +kubebuilder:validation:MaxItems=4
	// +listType=map
	// +listMapKey=level
	// +optional
	Refused []RefusedLogins `json:"refused,omitempty"`
	// Conditions has FenceReady: whether the node could be switched off if it were silent now.
	// +kubebuilder:validation:MaxItems=8
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// RefusedLogins is how often a level refused the login.
type RefusedLogins struct {
	// Level is the level, from 0.
	Level int32 `json:"level"`
	// Times is how often in a row.
	Times int32 `json:"times"`
	// SecretVersion is the resourceVersions of the Secrets that it refused.
	// +kubebuilder:validation:MaxLength=512
	// +optional
	SecretVersion string `json:"secretVersion,omitempty"`
	// Generation is that of the FenceSource then.
	// +optional
	Generation int64 `json:"generation,omitempty"`
}

// Bound is one boot of one machine, and the hardware that answered for it.
type Bound struct {
	// NodeUID is the UID of the Node object.
	NodeUID string `json:"nodeUID"`
	// BootID is status.nodeInfo.bootID.
	BootID string `json:"bootID"`
	// MachineID is status.nodeInfo.systemUUID.
	MachineID string `json:"machineID"`
	// HardwareID is the identity that the hardware gave. A source whose agent can give none is bound by the person who set the annotation
	// fencing.belay.dev/machine on the FenceSource, whose value is this then.
	HardwareID string `json:"hardwareID"`
	// Levels are the levels, from 0, that said On then. In a fence a level whose hardware gives no identity counts only if it is one of them.
	// +kubebuilder:validation:MaxItems=8
	// +listType=set
	// +optional
	Levels []int32 `json:"levels,omitempty"`
	// KubeletKey is the public key of the certificate with which the kubelet of this boot answered while the node was Ready: "sha256:" and the
	// SHA-256 of its SubjectPublicKeyInfo. Once the node is silent, an answer with another key is no sign of life.
	// +kubebuilder:validation:MaxLength=128
	// +optional
	KubeletKey string `json:"kubeletKey,omitempty"`
	// Generation is that of the FenceSource then. One that was changed since is bound only if its hardware gives the same identity.
	// +optional
	Generation int64 `json:"generation,omitempty"`
	// Time is when it said so.
	Time metav1.MicroTime `json:"time"`
}

// RecordedZone is the first value of the label topology.kubernetes.io/zone that the fencer saw of a Node. A kubelet may change that label of its own
// Node: what is recorded stays until the Node is recreated.
type RecordedZone struct {
	// NodeUID is the UID of the Node object.
	// +kubebuilder:validation:MaxLength=128
	NodeUID string `json:"nodeUID"`
	// Name is the zone.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Name string `json:"name"`
}

// SentCommand is a command that a fencer was about to send.
type SentCommand struct {
	// Nonce is that of the intent.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	Nonce string `json:"nonce"`
	// Fence is the UID of the NodeFence.
	// +kubebuilder:validation:MaxLength=64
	// +optional
	Fence string `json:"fence,omitempty"`
	// By is the fencer.
	// +kubebuilder:validation:MaxLength=253
	// +optional
	By string `json:"by,omitempty"`
	// Time is when the first command of the fence was stored.
	Time metav1.MicroTime `json:"time"`
}

// PowerState is the answer of a power switch.
type PowerState struct {
	// State is On, Off or Unknown.
	// +kubebuilder:validation:Enum="On";"Off";Unknown
	State string `json:"state"`
	// Time is when it said so.
	Time metav1.MicroTime `json:"time"`
}
