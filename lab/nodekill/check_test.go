package nodekill

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/moby/sys/mountinfo"
	corev1 "k8s.io/api/core/v1"

	"belay.dev/belay/internal/kube"
	"belay.dev/belay/internal/nodevolume"
	"belay.dev/belay/lab/labdisk"
)

// mustBeListed is S7, read live while a call is in the driver's hands.
func (r *rig) mustBeListed(when, unique string) {
	node, err := r.node(context.WithoutCancel(r.Context()))
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case err != nil:
		r.wrong = append(r.wrong, fmt.Sprintf("read the node when %s: %v", when, err))
	case !lists(node, unique):
		r.wrong = append(r.wrong, fmt.Sprintf("S7: when %s for %s, volumesInUse is %v", when, unique, node.Status.VolumesInUse))
	}
	if pid := r.heldBy(unique); pid != 0 && strings.HasPrefix(when, string(Unstage)) {
		r.wrong = append(r.wrong, fmt.Sprintf("S7: when %s for %s, process %d held on to it", when, unique, pid))
	}
	r.listings++
}

func lists(node *corev1.Node, unique string) bool {
	return slices.Contains(node.Status.VolumesInUse, corev1.UniqueVolumeName(unique))
}

// checkDead checks what a killed agent left: each record is of a volume that is listed in use.
func (r *rig) checkDead() {
	r.Helper()
	node, err := r.node(r.Context())
	r.must(err)
	for name, record := range r.readRecords() {
		if record.InUse && !lists(node, kube.UniqueVolumeName(record.Driver, record.Handle)) {
			r.Errorf("S7: record %s of %s is on the disk, volumesInUse is %v", name, record.Handle, node.Status.VolumesInUse)
		}
	}
	r.failWrong()
}

// failWrong fails the test with what the live reads found.
func (r *rig) failWrong() {
	r.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, problem := range r.wrong {
		r.Error(problem)
	}
	r.wrong = nil
}

// readRecords reads all that are whole, by file name.
func (r *rig) readRecords() map[string]nodevolume.Record {
	r.Helper()
	entries, err := os.ReadDir(r.records())
	r.must(err)
	all := map[string]nodevolume.Record{}
	for _, entry := range entries {
		if strings.HasPrefix(entry.Name(), temporary) {
			continue
		}
		if record, ok := readRecord(filepath.Join(r.records(), entry.Name())); ok {
			all[entry.Name()] = record
		} else if _, err := os.Stat(filepath.Join(r.records(), entry.Name())); err == nil {
			r.Errorf("record %s cannot be read", entry.Name())
		}
	}
	return all
}

// place is a call's method and a moment of it.
type place struct {
	method Method
	moment Moment
}

// underWay counts what the kill fell into. The calls tell how far each was,
// the disk what the agent had done before a call and after an answer.
func (r *rig) underWay(h tally, killed time.Time) {
	met := map[place]bool{}
	last := map[string]call{}
	for _, c := range r.calls.snapshot() {
		switch moment := c.momentAt(killed); moment {
		case "":
			continue
		case Answered:
		default:
			met[place{c.method, moment}] = true
		}
		last[string(c.method)+c.target] = c
	}
	entries, err := os.ReadDir(r.records())
	r.must(err)
	for _, entry := range entries {
		name, temp := strings.CutPrefix(entry.Name(), temporary)
		record, ok := readRecord(filepath.Join(r.records(), name))
		info, err := entry.Info()
		switch {
		case err != nil:
		case temp && !ok:
			met[place{methodOf(nodevolume.Record{Kind: kindOf(name)}), RecordBegun}] = true
		case temp && record.Confirmed:
			record.Leaving = true
			met[place{methodOf(record), RecordBegun}] = true
		case temp || record.Confirmed: // the record that is in place describes a confirmation that is being written
		default:
			c, called := last[string(methodOf(record))+filepath.Join(r.root, record.Path)]
			switch {
			case !called || c.arrived.Before(info.ModTime()):
				met[place{methodOf(record), RecordWritten}] = true
			case c.momentAt(killed) == Answered && !c.failed:
				met[place{methodOf(record), Answered}] = true
			}
		}
	}
	for at := range met {
		h.Add(at.moment, at.method)
	}
	if len(met) == 0 {
		h.Add(AnyTime, "")
	}
}

// picture is the node as it is, or shall be.
type picture struct {
	Mounts, Records, InUse, Attached, PodDirs []string
	Loops                                     int
}

func (p *picture) sort() {
	for _, list := range []*[]string{&p.Mounts, &p.Records, &p.InUse, &p.Attached, &p.PodDirs} {
		slices.Sort(*list)
		*list = slices.Compact(*list)
	}
}

func hashed(handle string) string {
	sum := sha256.Sum256([]byte(handle))
	return hex.EncodeToString(sum[:])
}

func (r *rig) staging(v *volume) string {
	csi := filepath.Join(r.root, "plugins", "kubernetes.io", "csi")
	switch {
	case v.block:
		return filepath.Join(csi, "volumeDevices", "staging", v.pv)
	case v.stages:
		return filepath.Join(csi, v.driver, hashed(v.handle), "globalmount")
	default:
		return filepath.Join(r.dir, "hidden", v.handle)
	}
}

func (r *rig) target(p wish, v *volume) string {
	if v.block {
		return filepath.Join(r.root, "plugins", "kubernetes.io", "csi", "volumeDevices", "publish", v.pv, string(p.uid))
	}
	return filepath.Join(r.root, "pods", string(p.uid), "volumes", "kubernetes.io~csi", v.pv, "mount")
}

// recordLine is what is compared of a record. The stage of a raw block volume leaves no mount by which a starting agent
// could see that it is staged: as long as no further pod wants it published, the driver is not called again, and a
// record that such a call left unconfirmed stays unconfirmed.
func recordLine(r nodevolume.Record) string {
	confirmed := r.Confirmed || (r.Block && r.Kind == nodevolume.StageKind && !r.Leaving)
	return fmt.Sprintf("%s %s confirmed %v", r.Kind, r.Path, confirmed)
}

// wanted is the node as the pods want it.
func (r *rig) wanted() picture {
	var want picture
	for _, p := range r.pods {
		want.PodDirs = append(want.PodDirs, string(p.uid))
		for _, v := range p.volumes {
			want.Mounts = append(want.Mounts, r.target(p, v))
			want.Records = append(want.Records, recordLine(nodevolume.Record{
				Kind: nodevolume.PublishKind, Path: r.target(p, v), Block: v.block, Confirmed: true,
			}))
		}
	}
	for _, v := range r.volumes {
		if len(r.usedBy(v)) == 0 {
			continue
		}
		if v.stages {
			want.Records = append(want.Records, recordLine(nodevolume.Record{
				Kind: nodevolume.StageKind, Path: r.staging(v), Block: v.block, Confirmed: true,
			}))
			want.Loops++
		}
		if v.attached {
			want.InUse = append(want.InUse, v.unique())
			want.Attached = append(want.Attached, v.handle)
			if !v.block { // a raw device is bound where it is published alone
				want.Mounts = append(want.Mounts, r.staging(v))
			}
		}
	}
	want.sort()
	return want
}

// seen is the node as it is.
func (r *rig) seen() (picture, error) {
	var have picture
	table, err := os.Open(fmt.Sprintf("/proc/%d/mountinfo", r.init))
	if err != nil {
		return have, err
	}
	defer func() { _ = table.Close() }()
	infos, err := mountinfo.GetMountsFromReader(table, func(i *mountinfo.Info) (skip, stop bool) {
		return !strings.HasPrefix(i.Mountpoint, r.root+"/") && !strings.HasPrefix(i.Mountpoint, filepath.Join(r.dir, "hidden")+"/"), false
	})
	if err != nil {
		return have, fmt.Errorf("read the machine's mount table: %w", err)
	}
	for _, i := range infos {
		have.Mounts = append(have.Mounts, i.Mountpoint)
	}
	doubled := len(have.Mounts)
	for _, record := range r.readRecords() {
		record.Path = filepath.Join(r.root, record.Path)
		have.Records = append(have.Records, recordLine(record))
	}
	node, err := r.node(r.Context())
	if err != nil {
		return have, err
	}
	for _, name := range node.Status.VolumesInUse {
		have.InUse = append(have.InUse, string(name))
	}
	attachments, err := r.scene.Cluster.Fabric().Attachments(r.Context())
	if err != nil {
		return have, err
	}
	for _, a := range attachments {
		if a.Driver != labdisk.DriverLocal {
			have.Attached = append(have.Attached, a.Volume)
		}
	}
	dirs, err := os.ReadDir(filepath.Join(r.root, "pods"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return have, err
	}
	for _, dir := range dirs {
		have.PodDirs = append(have.PodDirs, dir.Name())
	}
	have.Loops, err = r.loops()
	have.sort()
	if len(have.Mounts) != doubled {
		have.Mounts = append(have.Mounts, "something is mounted twice")
	}
	return have, err
}

// loops counts the loop devices over the machine's volumes.
func (r *rig) loops() (int, error) {
	files, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	if err != nil {
		return 0, err
	}
	n := 0
	for _, file := range files {
		raw, err := os.ReadFile(file)
		if err == nil && strings.Contains(string(raw), r.dir+"/") {
			n++
		}
	}
	return n, nil
}

// settle waits until the node is as the pods want it, and checks the data.
func (r *rig) settle() {
	r.Helper()
	var difference string
	want := r.wanted()
	deadline := time.After(limit)
	tick := time.NewTicker(look)
	defer tick.Stop()
	for {
		have, err := r.seen()
		r.must(err)
		if difference = cmp.Diff(want, have); difference == "" {
			break
		}
		select {
		case <-tick.C:
		case <-deadline:
			r.Fatalf("%v after the last restart the node is not as wanted (-want +have):\n%s", limit, difference)
		}
	}
	for _, v := range r.volumes {
		r.checkData(v)
	}
}

// checkData reads what was written last, through every pod, and writes new data.
func (r *rig) checkData(v *volume) {
	r.Helper()
	users := r.usedBy(v)
	slices.Sort(users)
	for _, name := range users {
		if got := r.read(r.pods[name], v); v.token != "" && got != v.token {
			r.Errorf("volume %s of pod %s holds %q, not %q", v.claim, name, got, v.token)
		}
	}
	if len(users) > 0 {
		v.token = fmt.Sprintf("%s after %d starts", v.claim, r.starts)
		r.write(r.pods[users[0]], v)
	}
}

// tokenSize is what a token takes on a volume, filled up with blanks.
const tokenSize = 512

func (r *rig) dataFile(p wish, v *volume) string {
	path := r.inside(r.target(p, v))
	if v.block {
		return path
	}
	return filepath.Join(path, "token")
}

func (r *rig) read(p wish, v *volume) string {
	r.Helper()
	f, err := os.Open(r.dataFile(p, v))
	if errors.Is(err, fs.ErrNotExist) && v.token == "" {
		return ""
	}
	r.must(err)
	defer func() { _ = f.Close() }()
	raw := make([]byte, tokenSize)
	if _, err := f.ReadAt(raw, 0); err != nil {
		r.Fatalf("read volume %s: %v", v.claim, err)
	}
	return strings.TrimRight(string(raw), " ")
}

func (r *rig) write(p wish, v *volume) {
	r.Helper()
	flags := os.O_WRONLY | os.O_SYNC
	if !v.block {
		flags |= os.O_CREATE
	}
	f, err := os.OpenFile(r.dataFile(p, v), flags, 0o600)
	r.must(err)
	_, err = f.WriteAt([]byte(fmt.Sprintf("%-*s", tokenSize, v.token)), 0)
	r.must(errors.Join(err, f.Close()))
}

// leftovers lists what remains in the agent's root without any pod, except for what is always there.
func (r *rig) leftovers() []string {
	r.Helper()
	csi := "plugins/kubernetes.io/csi"
	usual := []string{
		".", "belay", "belay.lock", "belay/owner.json", "belay/pods", "belay/volumes", "plugins", "plugins/kubernetes.io", csi, "pods", "plugins_registry",
		csi + "/volumeDevices", csi + "/volumeDevices/staging", csi + "/volumeDevices/publish",
	}
	for _, driver := range labdisk.Drivers() {
		usual = append(usual, "plugins/"+driver, csi+"/"+driver)
	}
	var left []string
	r.must(filepath.WalkDir(r.root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(r.root, path)
		if err == nil && entry.Type()&fs.ModeSocket == 0 && !slices.Contains(usual, name) {
			left = append(left, name)
		}
		return err
	}))
	return left
}
