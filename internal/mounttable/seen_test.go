package mounttable

import (
	"errors"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// What becomes of a volume that is used: the rows of docs/invariants.md, "Who is seen".
const (
	found = "found"
	// refused: the search finds nothing, and the kernel refuses the unmount.
	refused = "the unmount is refused"
	// gone: the search finds nothing, and nothing is left of the file system after the unmount.
	gone = "nothing is left"
	// unseen: the search finds nothing, and the file system stays mounted somewhere.
	unseen = "NOT FOUND"
)

const (
	inOurs  = ""        // in the agent's mount namespace
	private = "private" // in a copy of it that receives nothing
	slave   = "slave"   // in a copy that receives our mounts and unmounts
)

// seenRow is a user of a volume. Its script runs in a shell with VOL, the volume, and AT, an empty directory outside of it.
type seenRow struct {
	propagation, script string
	want                string
}

var seenRows = map[string]seenRow{
	"copy: private":                       {private, "true", found},
	"copy: receives":                      {slave, "true", gone},
	"copy: receives and a mount below":    {slave, `mount -t tmpfs below "$VOL/sub"`, found},
	"copy: receives and a mount over it":  {slave, `mount -t tmpfs over "$VOL"`, found}, // the kernel would unmount it; nothing is unsafe
	"copy: receives and works there":      {slave, `cd "$VOL"`, refused},
	"copy: receives and bound elsewhere":  {slave, `mount --bind "$VOL" "$AT"`, found},
	"bind mount of a directory":           {private, `mount --bind "$VOL/sub" "$AT"; umount "$VOL"`, found},
	"bind mount of a file":                {private, `touch "$AT/f"; mount --bind "$VOL/file" "$AT/f"; umount "$VOL"`, found},
	"user namespace: private":             {private, `exec unshare -Urm --propagation private sh -c 'echo ready; read line'`, found},
	"user namespace: receives":            {slave, `exec unshare -Urm --propagation slave sh -c 'echo ready; read line'`, gone},
	"user namespace: receives and below":  {slave, `exec unshare -Urm --propagation slave sh -c 'mount -t tmpfs below "$VOL/sub"; echo ready; read line'`, found},
	"overlayfs: lower directory":          {private, `mount -t overlay -o "lowerdir=$VOL:/etc" over "$AT"; umount "$VOL"`, unseen},
	"overlayfs: lower directory and ours": {inOurs, `mount -t overlay -o "lowerdir=$VOL:/etc" over "$AT"`, unseen},
	"open file":                           {inOurs, holds("open", "file"), refused},
	"working directory":                   {inOurs, `cd "$VOL/sub"`, refused},
	"root directory":                      {inOurs, holds("live in", ""), refused},
	"program":                             {inOurs, `cp "$SELF" "$VOL/self"; ` + hold + `=rest:/ exec "$VOL/self"`, refused},
	"mapped file that is closed":          {inOurs, holds("map", "file"), refused},
	"file registered with io_uring":       {inOurs, holds("io_uring", "file"), refused},
	"file in flight over a socket":        {inOurs, holds("in flight", "file"), refused},
	"fanotify marks":                      {inOurs, holds("watch", "file"), gone},
	"open file: unmounted lazily":         {private, holds("lazily", ""), unseen},
	"open file: received from elsewhere":  {private, `cd "$VOL"; umount -l "$VOL"`, unseen},
	"namespace: seen from a chroot":       {private, `mkdir "$AT/r"; ` + strings.ReplaceAll(holds("mount a tmpfs and live in it", ""), "$VOL/", "$AT/r"), unseen},
	"loop device over a file":             {inOurs, holds("loop", "file"), refused},
	"/proc with hidepid":                  {private, "true", found},
}

// holds is the script of a process of [ways].
func holds(how, file string) string {
	return hold + `="` + how + `:$VOL/` + file + `" exec "$SELF"`
}

// TestWhoIsSeen tries each on an ext4 file system, and unmounts that if the search finds no user.
func TestWhoIsSeen(t *testing.T) {
	if !alone(t) {
		return
	}
	for name, row := range seenRows {
		t.Run(name, func(t *testing.T) {
			if strings.Contains(name, "hidepid") {
				must(t, unix.Mount("proc", "/proc", "proc", 0, "hidepid=2"))
				t.Cleanup(func() { must(t, unix.Unmount("/proc", unix.MNT_DETACH)) })
			}
			d := newDisk(t)
			cmd := d.user(t, row)
			got, holders := d.take(t)
			if got != row.want {
				t.Errorf("%s, want %s (holders %v)", got, row.want, holders)
			}
			t.Logf("%s: %s %v", name, got, holders)
			if got != found {
				return
			}
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
			if after, holders := d.take(t); after != gone {
				t.Errorf("after its end: %s, %v", after, holders)
			}
		})
	}
}

// user starts the user of a row, and waits until it uses the volume.
func (d *disk) user(t *testing.T, row seenRow) *exec.Cmd {
	t.Helper()
	at, err := os.MkdirTemp("", "mounttable-at-") //nolint:usetesting // as newDisk
	must(t, err)
	t.Cleanup(func() { must(t, os.RemoveAll(at)) })
	self, err := os.Executable()
	must(t, err)
	t.Cleanup(func() { _ = unix.Unmount(at, unix.MNT_DETACH) })
	for name, value := range map[string]string{"VOL": d.volume, "AT": at, "SELF": self} {
		t.Setenv(name, value)
	}
	if row.propagation != inOurs {
		return container(t, row.propagation, row.script)
	}
	return shell(t, exec.Command("sh", "-ec", row.script+"; echo ready; read line"))
}

// take does what the agent and a driver do: it searches, and if it finds nothing, unmounts.
func (d *disk) take(t *testing.T) (string, []Holder) {
	t.Helper()
	var reader Reader
	table, err := reader.Read()
	must(t, err)
	holders, err := table.Holders(Volume{Paths: []string{d.volume}})
	must(t, err)
	if len(holders) > 0 {
		return found, holders
	}
	switch err := unix.Unmount(d.volume, 0); {
	case errors.Is(err, syscall.EBUSY):
		return refused, nil
	case err != nil:
		t.Fatal(err)
	}
	if d.busy(t) {
		return unseen, nil
	}
	return gone, nil
}
