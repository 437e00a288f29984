package mounttable

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// deviceFile makes a device file for the disk, as a runtime does for a container.
func (d *disk) deviceFile(t *testing.T) (path, device string) {
	t.Helper()
	device, err := Device(d.device)
	must(t, err)
	var st unix.Stat_t
	must(t, unix.Stat(d.device, &st))
	path = filepath.Join(d.root, "xvda")
	must(t, unix.Mknod(path, unix.S_IFBLK|0o600, int(st.Rdev)))
	return path, device
}

func holder(t *testing.T, how, path string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), hold+"="+how+":"+path)
	return shell(t, cmd)
}

// TestWhoHasADeviceOpen has the rows about raw devices of docs/invariants.md, "Who is seen".
func TestWhoHasADeviceOpen(t *testing.T) {
	if !alone(t) {
		return
	}
	for name, tt := range map[string]struct {
		how      string
		machines bool // the device file is the machine's
		found    bool
	}{
		"open":                          {how: "open", found: true},
		"open in a thread of its own":   {how: "open in a thread of its own", found: true},
		"open: the first thread ended":  {how: endFirst, found: true},
		"open through the machine's":    {how: "open", machines: true},
		"mapped and closed":             {how: "map"},
		"registered with io_uring":      {how: "io_uring"},
		"in flight over a UNIX socket":  {how: "in flight"},
		"a loop device over the device": {how: "loop", found: false},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDisk(t)
			must(t, unix.Unmount(d.volume, 0))
			path, device := d.deviceFile(t)
			if tt.machines {
				path = d.device
			}
			cmd := holder(t, tt.how, path)
			holders, err := Openers(device)
			must(t, err)
			if found := slices.ContainsFunc(holders, func(h Holder) bool { return h.PID == cmd.Process.Pid }); found != tt.found {
				t.Errorf("found: %v, want %v (holders %v)", found, tt.found, holders)
			}
		})
	}
}

// TestUnreadableFilesCountAsUsed: without CAP_SYS_PTRACE the files of a process with more capabilities may not be read.
func TestUnreadableFilesCountAsUsed(t *testing.T) {
	const pid, number = "MOUNTTABLE_TEST_PID", "MOUNTTABLE_TEST_DEVICE"
	if os.Getenv(pid) == "" {
		if !alone(t) {
			return
		}
		d := newDisk(t)
		path, device := d.deviceFile(t)
		cmd := exec.Command("setpriv", "--bounding-set", "-sys_ptrace", os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
		cmd.Env = append(os.Environ(), pid+"="+strconv.Itoa(holder(t, "open", path).Process.Pid), number+"="+device)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		return
	}
	zombie := exec.Command("true")
	zombie.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	must(t, zombie.Start())
	defer zombie.Wait()
	must(t, unix.Waitid(unix.P_PID, zombie.Process.Pid, nil, unix.WEXITED|unix.WNOWAIT, nil))
	holders, err := Openers(os.Getenv(number))
	if !errors.Is(err, fs.ErrPermission) || !strings.Contains(err.Error(), "process "+os.Getenv(pid)+" (") {
		t.Errorf("holders %v, err %v; want an error about process %s", holders, err, os.Getenv(pid))
	}
	if err != nil && strings.Contains(err.Error(), "process "+strconv.Itoa(zombie.Process.Pid)+" (") {
		t.Errorf("a process that has ended counts: %v", err)
	}
}

// TestRights: what the search needs is enough, and what is missing has a name.
func TestRights(t *testing.T) {
	const want = "MOUNTTABLE_TEST_WANT"
	text, inside := os.LookupEnv(want)
	if inside {
		err := CheckRights()
		if text == "" {
			must(t, err)
			var reader Reader
			table, err := reader.Read()
			must(t, err)
			_, err = table.Holders(Volume{Paths: []string{"/proc"}})
			must(t, err)
			_, err = Openers("7:0")
			must(t, err)
		} else if !errors.Is(err, fs.ErrPermission) || !strings.Contains(err.Error(), text) {
			t.Errorf("err = %v, want %s", err, text)
		}
		return
	}
	if os.Getuid() != 0 {
		t.Skip("needs root to give capabilities up")
	}
	for bounds, text := range map[string]string{
		"-all,+sys_ptrace,+dac_read_search":          "",
		"-all,+sys_ptrace,+dac_override":             "",
		"-sys_ptrace":                                "lacks CAP_SYS_PTRACE:",
		"-dac_read_search,-dac_override":             "lacks CAP_DAC_READ_SEARCH:",
		"-dac_read_search,-dac_override,-sys_ptrace": "lacks CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH:",
	} {
		cmd := exec.Command("setpriv", "--bounding-set", bounds, os.Args[0], "-test.run=^"+t.Name()+"$")
		cmd.Env = append(os.Environ(), want+"="+text)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%s: %v: %s", bounds, err, out)
		}
	}
}
