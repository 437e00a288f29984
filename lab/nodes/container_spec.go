package nodes

import (
	"time"
)

// containerSpec is all that container-exec needs to start one container. It reads it
// from its pipe, so that it can be started, and be past its own start-up time,
// before the volumes are mounted.
type containerSpec struct {
	// Command is the program with its arguments, found in the container's own root by
	// the PATH of Env.
	Command []string `json:"command"`
	Env     []string `json:"env"`
	WorkDir string   `json:"workDir"`
	// UID and GID run the command as another user.
	UID *int64 `json:"uid,omitempty"`
	GID *int64 `json:"gid,omitempty"`
	// Groups are the command's groups besides GID.
	Groups []int64 `json:"groups,omitempty"`
	// ReadOnlyRoot makes everything read-only but the mounts.
	ReadOnlyRoot bool `json:"readOnlyRoot,omitempty"`
	// Mounts are bound into the container, in this order.
	Mounts []bind `json:"mounts"`
}

// bind is one file, directory or device of the node that a container sees.
type bind struct {
	Source   string `json:"source"`
	Target   string `json:"target"`
	ReadOnly bool   `json:"readOnly,omitempty"`
	// Device makes Target a device file of its own: the same device as Source.
	Device bool `json:"device,omitempty"`
}

// started is what container-exec says once the command runs, or cannot.
type started struct {
	// PID of the command in the node's pid namespace.
	PID int `json:"pid"`
	// At is when it was started.
	At time.Time `json:"at"`
	// Problem says why it could not be started.
	Problem string `json:"problem,omitempty"`
}

// ended is what container-exec writes when the command has ended.
type ended struct {
	// ExitCode is that of the command; 128 + signal if a signal ended it.
	ExitCode int       `json:"exitCode"`
	Signal   int       `json:"signal,omitempty"`
	At       time.Time `json:"at"`
	// Problem says why it was never started.
	Problem string `json:"problem,omitempty"`
}

// Files in a container's directory. The directory is the container: an agent that
// is restarted finds there all that it must know.
const (
	// shimFile is the proc.Record of container-exec, written by the agent before it
	// passes the spec: from then on the process counts.
	shimFile = "process.json"
	// startedFile and endedFile are written by container-exec.
	startedFile = "started.json"
	endedFile   = "ended.json"
	// logFile is in the format of the container runtime interface.
	logFile = "log"
)

// exitStartError is the exit code of a container that could not be started, as
// container runtimes report it.
const exitStartError = 128
