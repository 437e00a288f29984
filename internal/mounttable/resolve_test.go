package mounttable

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestLinkedVolume: what a symbolic link leads to is searched for, whatever part of a file system it is.
func TestLinkedVolume(t *testing.T) {
	if !alone(t) {
		return
	}
	for name, tt := range map[string]struct {
		to     string // below the root
		script string
		held   bool
	}{
		"a mount":                      {"volume", `mount --bind "$VOL" "$AT"`, true},
		"a mount, by its part":         {"volume", `mount --bind "$VOL/sub" "$AT"`, true},
		"a directory of a mount":       {"volume/sub", `mount --bind "$VOL/sub" "$AT"`, true},
		"a directory beside it":        {"volume/sub", `mkdir "$VOL/other"; mount --bind "$VOL/other" "$AT"; umount "$VOL"`, false},
		"a directory of the root":      {"plain", `mount --bind "$VOL/../plain" "$AT"`, true},
		"by way of another link":       {"relative/volume", `mount --bind "$VOL" "$AT"`, true},
		"nothing":                      {"none", `mount --bind "$VOL" "$AT"`, false},
		"itself, which leads nowhere":  {"link", "true", false},
		"a namespace that has it only": {"volume", "true", true},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDisk(t)
			link := filepath.Join(d.root, "link")
			must(t, os.Mkdir(filepath.Join(d.root, "plain"), 0o750))
			must(t, os.Symlink(".", filepath.Join(d.root, "relative")))
			must(t, os.Symlink(filepath.Join(d.root, tt.to), link))
			cmd := d.user(t, seenRow{propagation: private, script: tt.script})
			var reader Reader
			table, err := reader.Read()
			must(t, err)
			holders, err := table.Holders(Volume{Paths: []string{link}, OtherNamespacesOnly: true})
			if name == "itself, which leads nowhere" {
				if err == nil {
					t.Error("no error")
				}
				return
			}
			must(t, err)
			if held := slices.ContainsFunc(holders, func(h Holder) bool { return h.PID == cmd.Process.Pid }); held != tt.held {
				t.Errorf("held: %v, want %v (holders %v)", held, tt.held, holders)
			}
		})
	}
}

// TestMountThatHangsIsNotTouched: a FUSE file system whose server does not answer.
func TestMountThatHangsIsNotTouched(t *testing.T) {
	if !alone(t) {
		return
	}
	root, _ := shared(t)
	server, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	must(t, err)
	hung := filepath.Join(root, "hung")
	must(t, os.Mkdir(hung, 0o750))
	must(t, unix.Mount("hung", hung, "fuse", 0, fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0", server)))
	t.Cleanup(func() { _ = unix.Unmount(hung, unix.MNT_DETACH) })
	link := filepath.Join(root, "link")
	must(t, os.Symlink(hung+"/pvc/1", link))
	cmd := exec.Command("unshare", "-m", "sh", "-c", "echo ready; read line")
	shell(t, cmd)
	var reader Reader
	table, err := reader.Read()
	must(t, err)
	done := make(chan string, 1)
	go func() {
		resolved, err := table.resolve(link)
		done <- fmt.Sprint(resolved, err)
	}()
	select {
	case got := <-done:
		if want := hung + "/pvc/1<nil>"; got != want {
			t.Errorf("%s, want %s", got, want)
		}
	case <-time.After(10 * time.Second):
		t.Error("it hangs")
	}
	must(t, unix.Close(server)) // which ends whatever hangs
}
