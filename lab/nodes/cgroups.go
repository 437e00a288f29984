package nodes

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

const cgroupMount = "/sys/fs/cgroup"

// cgroupHierarchies lists the directories below which a node's cgroup is made: one
// per mounted v1 controller, or the single v2 mount.
func cgroupHierarchies() ([]string, error) {
	if isCgroup2() {
		return []string{cgroupMount}, nil
	}
	entries, err := os.ReadDir(cgroupMount)
	if err != nil {
		return nil, fmt.Errorf("list cgroup controllers: %w", err)
	}
	var hierarchies []string
	for _, entry := range entries {
		path := filepath.Join(cgroupMount, entry.Name())
		// "cpu -> cpu,cpuacct" is a link to the same mount.
		if entry.IsDir() {
			hierarchies = append(hierarchies, path)
		}
	}
	return hierarchies, nil
}

func isCgroup2() bool {
	var stat unix.Statfs_t
	return unix.Statfs(cgroupMount, &stat) == nil && stat.Type == unix.CGROUP2_SUPER_MAGIC
}

// makeCgroup makes the node's cgroup in every hierarchy. A new v1 cpuset is empty
// and takes no process until it is given processors and memory nodes.
func makeCgroup(name string) error {
	hierarchies, err := cgroupHierarchies()
	if err != nil {
		return err
	}
	for _, hierarchy := range hierarchies {
		dir := filepath.Join(hierarchy, name)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return fmt.Errorf("make cgroup %s: %w", dir, err)
		}
		for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
			value, err := os.ReadFile(filepath.Join(hierarchy, file))
			if errors.Is(err, fs.ErrNotExist) {
				continue
			}
			if err != nil {
				return fmt.Errorf("read %s of %s: %w", file, hierarchy, err)
			}
			if err := os.WriteFile(filepath.Join(dir, file), value, 0o644); err != nil { //nolint:gosec // the kernel's own file names
				return fmt.Errorf("set %s of cgroup %s: %w", file, dir, err)
			}
		}
	}
	if isCgroup2() {
		return delegateControllers(filepath.Join(cgroupMount, name))
	}
	return nil
}

// delegateControllers lets a v2 cgroup give all its controllers to its children.
func delegateControllers(dir string) error {
	controllers, err := os.ReadFile(filepath.Join(dir, "cgroup.controllers"))
	if err != nil {
		return fmt.Errorf("read controllers of cgroup %s: %w", dir, err)
	}
	var enable []string
	for controller := range strings.FieldsSeq(string(controllers)) {
		enable = append(enable, "+"+controller)
	}
	file := filepath.Join(dir, "cgroup.subtree_control")
	if err := os.WriteFile(file, []byte(strings.Join(enable, " ")), 0o644); err != nil {
		return fmt.Errorf("delegate controllers of cgroup %s: %w", dir, err)
	}
	return nil
}

// freezerGroup is the cgroup that holds every process of the node, so that all of
// it can be frozen; v2 wants processes in leaves only.
func freezerGroup(name string) string {
	if isCgroup2() {
		return filepath.Join(cgroupMount, name, "init")
	}
	return filepath.Join(cgroupMount, "freezer", name)
}

// joinCgroup puts the calling process, and so all that it starts, under the
// node's freezer.
func joinCgroup(name string) error {
	group := freezerGroup(name)
	if err := os.MkdirAll(group, 0o755); err != nil {
		return fmt.Errorf("make cgroup %s: %w", group, err)
	}
	file := filepath.Join(group, "cgroup.procs")
	if err := os.WriteFile(file, []byte(strconv.Itoa(os.Getpid())), 0o644); err != nil {
		return fmt.Errorf("join cgroup %s: %w", group, err)
	}
	return nil
}

// Freeze stops every process of the node where it stands, as a machine that hangs.
func (n *Node) Freeze() error { return n.setFrozen("FROZEN", "1") }

// Thaw undoes Freeze: the node continues as if nothing had happened.
func (n *Node) Thaw() error { return n.setFrozen("THAWED", "0") }

// KillFrozen kills all processes of a frozen node. The kernel carries it out when the node is thawed, before any of them runs.
func (n *Node) KillFrozen() error {
	pids, err := n.pids()
	for _, pid := range pids {
		_ = unix.Kill(pid, unix.SIGKILL) // it may have ended before it was frozen
	}
	return err
}

// AwaitEnd waits until the node's processes, which were killed, have died.
func (n *Node) AwaitEnd() error {
	var left []int
	var err error
	within(cgroupPatience, func() bool {
		left, err = n.pids()
		return len(left) == 0 && (err == nil || errors.Is(err, fs.ErrNotExist))
	})
	if errors.Is(err, fs.ErrNotExist) { // it has no cgroup any more
		err = nil
	}
	if err == nil && len(left) > 0 {
		err = fmt.Errorf("processes %v of node %s do not end", left, n.Config.Name)
	}
	return err
}

// pids are the node's processes.
func (n *Node) pids() (pids []int, err error) {
	root := filepath.Join(cgroupMount, "freezer", n.Config.Cgroup())
	if isCgroup2() {
		root = filepath.Join(cgroupMount, n.Config.Cgroup())
	}
	err = filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.Name() != "cgroup.procs" {
			return err
		}
		content, err := os.ReadFile(path) //nolint:gosec // a cgroup has no links
		if err != nil {
			return fmt.Errorf("list processes of node %s: %w", n.Config.Name, err)
		}
		for field := range strings.FieldsSeq(string(content)) {
			if pid, err := strconv.Atoi(field); err == nil && pid > 1 {
				pids = append(pids, pid)
			}
		}
		return nil
	})
	return pids, err
}

func (n *Node) setFrozen(v1, v2 string) error {
	file, value := filepath.Join(cgroupMount, "freezer", n.Config.Cgroup(), "freezer.state"), v1
	if isCgroup2() {
		file, value = filepath.Join(cgroupMount, n.Config.Cgroup(), "cgroup.freeze"), v2
	}
	if err := os.WriteFile(file, []byte(value), 0o644); err != nil {
		return fmt.Errorf("set freezer of node %s to %s: %w", n.Config.Name, value, err)
	}
	return nil
}

// Cgroups lists the cgroups of all nodes of the lab in a folder.
func Cgroups(labDir string) ([]string, error) {
	hierarchies, err := cgroupHierarchies()
	if err != nil {
		return nil, err
	}
	var all []string
	for _, hierarchy := range hierarchies {
		groups, err := filepath.Glob(filepath.Join(hierarchy, cgroupPrefix+"*-"+folderKey(labDir)+"-*"))
		if err != nil {
			return nil, fmt.Errorf("look for cgroups of the lab in %s: %w", labDir, err)
		}
		all = append(all, groups...)
	}
	return all, nil
}

// RemoveCgroups removes what the nodes of the lab in a folder left below /sys/fs/cgroup.
// Their processes must be gone, or dying. Safe to call when there is nothing.
func RemoveCgroups(labDir string) (err error) {
	within(cgroupPatience, func() bool {
		groups, problem := Cgroups(labDir)
		problems := []error{problem}
		for _, group := range groups {
			problems = append(problems, removeCgroup(group))
		}
		err = errors.Join(problems...)
		return err == nil
	})
	return err
}

// RemoveCgroup removes what one node left below /sys/fs/cgroup.
func (n *Node) RemoveCgroup() error {
	hierarchies, err := cgroupHierarchies()
	if err != nil {
		return err
	}
	var problems []error
	for _, hierarchy := range hierarchies {
		problems = append(problems, removeCgroup(filepath.Join(hierarchy, n.Config.Cgroup())))
	}
	return errors.Join(problems...)
}

// removeCgroup removes a tree of cgroups, the deepest first. rmdir alone removes a
// cgroup; its files cannot be unlinked.
func removeCgroup(root string) error {
	var groups []string
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		if entry.IsDir() {
			groups = append(groups, path)
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("walk cgroup %s: %w", root, err)
	}
	for _, group := range slices.Backward(groups) {
		if err := unix.Rmdir(group); err != nil && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("remove cgroup %s: %w", group, err)
		}
	}
	return nil
}
