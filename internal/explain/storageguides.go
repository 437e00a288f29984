package explain

import "regexp"

// ofNone is what to do if the storage shows no machine that has a volume which it calls in use; none where that is not known.
func ofNone(s Situation) []Step {
	if s.AskNone == "" {
		return nil
	}
	return []Step{{
		Text:    "Only if the storage shows no machine that has it: its state is wrong. Have an administrator of the storage set it to available." + documented(s),
		Command: s.AskNone,
		Danger:  "the storage does not check whether a machine still has the volume open",
	}}
}

// freedByBelay is what belay-attacher does by itself, where it runs.
func freedByBelay(s Situation) []Step {
	if !s.BelayFrees {
		return nil
	}
	return []Step{{
		Text: "Or wait: belay-attacher runs for this driver. It detaches the volume at a node of this cluster that does not list it in use, once the driver has listed it there twice. " +
			"Nothing comes of it where the other machine is no node of this cluster.",
		Danger: "it asks the node's kubelet, and not the machine: make sure first that nothing there uses the volume",
	}}
}

// repairFileSystem is what to do about a file system that the check before a mount does not correct. While no pod that runs uses the volume, the attach/detach
// controller detaches it; a claim has the volumeMode of its PersistentVolume (k/k v1.36.3 pkg/controller/volume/persistentvolume/pv_controller.go
// checkVolumeSatisfyClaim).
func repairFileSystem(s Situation) []Step {
	tool := "e2fsck -f (xfs_repair for XFS)"
	switch s.FSType {
	case "":
	case "xfs":
		tool = "xfs_repair (PersistentVolume " + volumeName(s) + " names xfs)"
	default:
		tool = "e2fsck -f (PersistentVolume " + volumeName(s) + " names " + s.FSType + ")"
	}
	return []Step{
		{Text: "Take a snapshot of the volume at the storage, before anything else. Retrying the mount does not help. The command shows its handle there.", Command: ofVolume(s, `kubectl get pv %s -o jsonpath='{.spec.csi.volumeHandle}{"\n"}'`)},
		{
			Text: "Stop the pod by its controller, or delete it: it stays off until the end. When no pod uses the volume any more, it is detached from node " + s.Wanted +
				". The command shows where it is attached.",
			Command: ofVolume(s, "kubectl belay explain pv/%s"),
		},
		{
			Text: "Attach the volume to one machine, where it is mounted nowhere, and run " + tool + " on its device. " +
				"Attach it at the storage; or make a second PersistentVolume with the same handle, volumeMode Block and reclaim policy Retain, and run a pod that lists its claim in volumeDevices.",
			Danger: "a repair while another node has the volume mounted destroys it, and a repair may drop files",
		},
		{Text: "Or restore a snapshot or a backup from before the damage, to a volume of its own."},
	}
}

// aDevice matches the path of a device that can be put into a script.
var aDevice = regexp.MustCompile(`^/dev/[A-Za-z0-9/_.-]+$`)

// lookAtDevice shows the type that a device has, and what the kernel says.
func lookAtDevice(s Situation) string {
	if s.Wanted == "" {
		return ""
	}
	device := ""
	if aDevice.MatchString(s.Device) {
		device = " " + s.Device
	}
	return onNodeAsRoot(s.Wanted, "chroot /host sh -c "+ShellWord("blkid"+device+"; dmesg | tail -20"))
}
