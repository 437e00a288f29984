package explain

import (
	"regexp"
	"strings"
)

// onNodeAsRoot runs a command on a node with its files under /host and all its processes (kubernetes.io/docs/tasks/debug/debug-cluster/kubectl-node-debug;
// k8s.io/kubectl v0.36.3 pkg/cmd/debug/profiles.go, sysadmin).
func onNodeAsRoot(node, command string) string {
	return "kubectl debug node/" + node + " -it --image=busybox --profile=sysadmin -- " + command
}

// startsPod is what such a command leaves behind.
const startsPod = "The command starts a pod on the node: delete it after that."

// kubeletLog prints what kubelet has logged with a word in the last hour, where it logs to the journal.
func kubeletLog(s Situation, word string) string {
	return onNodeAsRoot(s.Node, "chroot /host sh -c "+ShellWord("journalctl -u kubelet --since=-1h | grep "+word))
}

// aName matches what can be put into a script: the name of an object, or a UID.
var aName = regexp.MustCompile(`^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$`)

// inPaths is what the mounts of a volume that stays mounted have in their paths (k/k v1.36.3 pkg/kubelet/kubeletconfig/defaults.go:21-22): the UID of the
// pod, or the PersistentVolume.
func inPaths(s Situation) string {
	for _, name := range []string{s.UID, s.Volume} {
		if aName.MatchString(name) {
			return name
		}
	}
	return "kubelet/pods"
}

// endMount is what to do about a volume that stays mounted, the mildest first. kubelet reads after a start from its directories what is mounted, and unmounts
// what no pod needs (k/k v1.36.3 pkg/kubelet/volumemanager/reconciler/reconstruct.go). kubectl drain refuses pods without a controller and pods with emptyDir
// volumes, without the flags for these (k8s.io/kubectl v0.36.3 pkg/drain/filters.go unreplicatedFilter, localStorageFilter).
func endMount(s Situation) []Step {
	path := strings.ReplaceAll(inPaths(s), "/", `\/`)
	steps := []Step{{
		Text: "See which processes on node " + s.Node + " use the mount, and end what should not. For each mount, the command prints its path and the numbers of the processes that have files open there. " +
			"A mount that does not answer, as of a file server that is gone, makes it hang: make the server answer first.",
		Command: onNodeAsRoot(s.Node, "sh -c "+ShellWord(`for m in $(awk "\$5 ~ /`+path+`/ {print \$5}" /proc/1/mountinfo); do echo $m; fuser -m /host$m; done`)),
	}}
	if s.Driver != "" {
		steps = append(steps, Step{
			Text:    "Find the driver's pod on node " + s.Node + ", and read its log. If it does not answer, delete it: its DaemonSet starts another one. With FUSE, that pod serves the mounts: all of them on the node break.",
			Command: podsOn(s.Node),
		})
	}
	return append(steps, Step{
		Text:    "If no process uses the mount, restart kubelet on node " + s.Node + " (systemctl restart kubelet): it then tries again to unmount what no pod needs. No container ends for that.",
		Command: onNodeAsRoot(s.Node, "chroot /host systemctl restart kubelet"),
		Danger:  "while kubelet is down, the node starts no pod, and it counts as not Ready if that lasts",
	}, Step{
		Text: "Only if it still fails: drain the node, reboot it even if the drain hangs on this pod, and uncordon it: a new boot has no mounts. " +
			"A drain refuses pods without a controller (--force deletes them, and nothing creates them again) and pods with emptyDir volumes (--delete-emptydir-data deletes that data).",
		Command: "kubectl drain " + s.Node + " --ignore-daemonsets",
		Danger:  "all pods of the node are stopped",
	})
}
