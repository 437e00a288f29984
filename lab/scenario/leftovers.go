package scenario

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"belay.dev/belay/lab/nodes"
)

// AwaitSettled waits until the cluster's and the storage's view of all volumes is
// what it should be when the writer is on a node, or, with an empty node, nowhere:
// one attachment there, listed in use and reported there, and nothing elsewhere.
func (s *Scene) AwaitSettled(ctx context.Context, node string) error {
	what := "nothing to be attached, in use or reported any more"
	if node != "" {
		what = "the volume to be attached, in use and reported on " + node + " and nowhere else"
	}
	var wrong []string
	err := s.await(ctx, moveLimit, what, func() (bool, error) {
		var err error
		wrong, err = s.unsettled(ctx, node)
		return len(wrong) == 0, err
	})
	if err != nil {
		return fmt.Errorf("%w\n  %s", err, strings.Join(wrong, "\n  "))
	}
	return nil
}

// unsettled lists what is not as it should be.
func (s *Scene) unsettled(ctx context.Context, node string) ([]string, error) {
	var wrong, held []string
	attachments, err := s.state.Storage().V1().VolumeAttachments().Lister().List(everything)
	if err != nil {
		return nil, fmt.Errorf("list attachments: %w", err)
	}
	for _, va := range attachments {
		if va.Status.Attached && va.DeletionTimestamp == nil {
			held = append(held, va.Spec.NodeName)
		} else {
			wrong = append(wrong, fmt.Sprintf("attachment %s for %s: attached %v, deleting %v",
				va.Name, va.Spec.NodeName, va.Status.Attached, va.DeletionTimestamp != nil))
		}
	}
	wrong = append(wrong, differ("VolumeAttachments", held, node)...)
	nodes, err := s.state.Core().V1().Nodes().Lister().List(everything)
	if err != nil {
		return nil, fmt.Errorf("list nodes: %w", err)
	}
	var inUse, reported []string
	for _, n := range nodes {
		for range n.Status.VolumesInUse {
			inUse = append(inUse, n.Name)
		}
		for range n.Status.VolumesAttached {
			reported = append(reported, n.Name)
		}
	}
	wrong = append(wrong, differ("volumesInUse", inUse, node)...)
	wrong = append(wrong, differ("volumesAttached", reported, node)...)
	stored, err := s.Cluster.Fabric().Attachments(ctx)
	if err != nil {
		return nil, fmt.Errorf("ask the storage who holds what: %w", err)
	}
	holders := make([]string, 0, len(stored))
	for _, a := range stored {
		holders = append(holders, a.Node)
	}
	return append(wrong, differ("the storage", holders, node)...), nil
}

// differ compares the nodes that a list names with the one that it should name.
func differ(list string, nodes []string, want string) []string {
	var wanted []string
	if want != "" {
		wanted = []string{want}
	}
	if slices.Equal(nodes, wanted) {
		return nil
	}
	return []string{fmt.Sprintf("%s names %q, wanted %q", list, nodes, wanted)}
}

// RemoveWriter removes the writer with its claim and volume and waits until nothing
// of it is left in the cluster.
func (s *Scene) RemoveWriter(ctx context.Context) error {
	if err := s.StopWriter(ctx); err != nil {
		return err
	}
	err := s.stubborn(ctx, "delete the writer", func() error {
		return s.Client.AppsV1().StatefulSets(Namespace).Delete(ctx, WriterSet, metav1.DeleteOptions{})
	})
	if err != nil {
		return err
	}
	if err := s.AwaitSettled(ctx, ""); err != nil {
		return err
	}
	err = s.stubborn(ctx, "delete the writer's claim", func() error {
		return s.Client.CoreV1().PersistentVolumeClaims(Namespace).Delete(ctx, claimName, metav1.DeleteOptions{})
	})
	if err != nil {
		return err
	}
	err = s.await(ctx, moveLimit, "the writer's volume to be deleted", func() (bool, error) {
		volumes, err := s.state.Core().V1().PersistentVolumes().Lister().List(everything)
		return len(volumes) == 0, err
	})
	s.acks.begin()
	return err
}

// LeftOnMachine lists what a lab left on this machine: processes whose command line
// names its folder, mounts below it, loop devices over files below it, and cgroups
// of its nodes. After Down it must be empty.
func LeftOnMachine(dir string) []string {
	var left []string
	mine := fmt.Sprint(os.Getpid())
	commands, _ := filepath.Glob("/proc/[0-9]*/cmdline") // the pattern is valid
	for _, file := range commands {
		pid := filepath.Base(filepath.Dir(file))
		raw, err := os.ReadFile(file)
		if err != nil || pid == mine {
			continue // it has ended meanwhile
		}
		if line := strings.ReplaceAll(string(raw), "\x00", " "); strings.Contains(line, dir+"/") {
			left = append(left, "process "+pid+": "+line)
		}
	}
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		left = append(left, err.Error())
	}
	for line := range strings.Lines(string(mounts)) {
		if strings.Contains(line, dir+"/") {
			left = append(left, "mount "+strings.TrimSpace(line))
		}
	}
	loops, _ := filepath.Glob("/sys/block/loop*/loop/backing_file")
	for _, file := range loops {
		if raw, err := os.ReadFile(file); err == nil && strings.Contains(string(raw), dir+"/") {
			left = append(left, "loop device "+file+": "+strings.TrimSpace(string(raw)))
		}
	}
	cgroups, err := nodes.Cgroups(dir)
	if err != nil {
		left = append(left, err.Error())
	}
	for _, group := range cgroups {
		left = append(left, "cgroup "+group)
	}
	return left
}
