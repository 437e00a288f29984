package labdisk

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"
)

// The ways in which the fabric says no. The controller service turns each into the gRPC code that the CSI spec names.
var (
	errVolumeNotFound = errors.New("volume is not known")
	errFaultNotFound  = errors.New("no such fault is set, so nothing was cleared")
	errNodeNotFound   = errors.New("node is not known to the fabric: its driver never registered")
	errIncompatible   = errors.New("incompatible")
	errHeldElsewhere  = errors.New("held by another node")
	errStillHeld      = errors.New("still attached")
	errTooMany        = errors.New("too many volumes on the node")
	errWrongZone      = errors.New("wrong zone")
	errDiskFull       = errors.New("no space left")
)

// describeDisk turns "no space left on device" into a sentence that says where.
func describeDisk(dir string, err error) error {
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		return fmt.Errorf("%w: the disk that holds %s is full; free some space there: %w", errDiskFull, dir, err)
	}
	return err
}

// newVolume is what a volume is made from.
type newVolume struct {
	Driver, Name string
	Bytes        int64
	Zone         string
}

// create makes the volume, or finds the one that was made under the same name; fits judges whether that one will do.
func (f *fabric) create(want newVolume, fits func(Volume) bool) (Volume, error) {
	sum := sha256.Sum256([]byte(want.Driver + "/" + want.Name))
	f.mu.Lock()
	for _, v := range f.volumes {
		if v.Driver != want.Driver || v.Name != want.Name {
			continue
		}
		f.mu.Unlock()
		have := v.about()
		if !fits(have) {
			return Volume{}, fmt.Errorf("volume %q exists with %d bytes in zone %q: %w", have.Name, have.Bytes, have.Zone, errIncompatible)
		}
		return have, f.save() // the first call may have died before its save
	}
	v := &volume{holders: map[string]Attachment{}, Volume: Volume{Driver: want.Driver, Name: want.Name, Bytes: want.Bytes,
		Zone: want.Zone, Sequence: f.nextSequence, Created: time.Now()}}
	v.Handle = fmt.Sprintf("%s-%d-%x", strings.SplitN(want.Driver, ".", 2)[0], v.Sequence, sum[:5])
	f.nextSequence++
	if err := v.open(f.opts.Dir); err != nil {
		f.mu.Unlock()
		return Volume{}, err
	}
	f.volumes[v.Handle] = v
	made := v.Volume
	f.mu.Unlock()
	return made, f.save()
}

// remove deletes the volume and its data. It is no error if there is none.
func (f *fabric) remove(driver, handle string) error {
	f.mu.Lock()
	v := f.volumes[handle]
	if v == nil || v.Driver != driver {
		f.mu.Unlock()
		return nil
	}
	v.gate.Lock()
	if len(v.holders) > 0 && !f.opts.Permissive {
		holders := v.holderNames()
		v.gate.Unlock()
		f.mu.Unlock()
		return fmt.Errorf("delete volume %s: %w to node %s", handle, errStillHeld, strings.Join(holders, ", "))
	}
	v.gone = true
	v.gate.Unlock()
	delete(f.volumes, handle)
	f.mu.Unlock()
	return errors.Join(f.save(), v.close(), os.RemoveAll(v.path(f.opts.Dir)))
}

// get returns the volume if the driver has it.
func (f *fabric) get(driver, handle string) (*volume, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.find(driver, handle)
}

// find is get for who holds mu, and so keeps the volume from being removed.
func (f *fabric) find(driver, handle string) (*volume, error) {
	v := f.volumes[handle]
	if v == nil || v.Driver != driver {
		return nil, fmt.Errorf("volume %q of driver %s: %w", handle, driver, errVolumeNotFound)
	}
	return v, nil
}

// attachment wanted by a publish.
type wantedAttachment struct {
	Driver, Volume, Node string
	ReadOnly             bool
	Shared               bool // by an access mode of several nodes
	SingleWriter         bool // of the nodes that share it one may write
}

// attach makes the node a holder of the volume. Asked again for the same it answers the same.
func (f *fabric) attach(want wantedAttachment) (Attachment, error) {
	a, err := f.attachNow(want)
	if err != nil {
		return Attachment{}, err
	}
	return a, f.save()
}

func (f *fabric) attachNow(want wantedAttachment) (Attachment, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	v, err := f.find(want.Driver, want.Volume)
	if err != nil {
		return Attachment{}, err
	}
	n := f.nodes[want.Node]
	if n == nil {
		return Attachment{}, fmt.Errorf("node %q: %w", want.Node, errNodeNotFound)
	}
	held := f.countHeld(want.Driver, want.Node, want.Volume)
	v.gate.Lock()
	defer v.gate.Unlock()
	if a, ok := v.holders[want.Node]; ok {
		if a.ReadOnly != want.ReadOnly || a.Shared != want.Shared {
			return Attachment{}, fmt.Errorf("volume %s is attached to node %s already with readonly=%t shared=%t: %w",
				v.Handle, want.Node, a.ReadOnly, a.Shared, errIncompatible)
		}
		return a, nil
	}
	if !f.opts.Permissive {
		if err := v.allows(want); err != nil {
			return Attachment{}, err
		}
		if v.Zone != n.zone {
			return Attachment{}, fmt.Errorf("volume %s lives in zone %q, node %s in %q: %w", v.Handle, v.Zone, n.name, n.zone, errWrongZone)
		}
	}
	if n.maxVolumes > 0 && int64(held) >= n.maxVolumes {
		return Attachment{}, fmt.Errorf("node %s holds %d volumes of %d: %w", n.name, held, n.maxVolumes, errTooMany)
	}
	a := Attachment{Driver: v.Driver, Volume: v.Handle, Name: v.Name, Node: want.Node, Epoch: f.nextEpoch,
		ReadOnly: want.ReadOnly, Shared: want.Shared, Since: time.Now()}
	f.nextEpoch++
	v.holders[want.Node] = a
	return a, nil
}

// allows reports whether one more holder of that kind is in order. The gate is held.
func (v *volume) allows(want wantedAttachment) error {
	for _, name := range v.holderNames() {
		a := v.holders[name]
		if !want.Shared || !a.Shared {
			return fmt.Errorf("volume %s is attached to node %s: %w", v.Handle, a.Node, errHeldElsewhere)
		}
		if want.SingleWriter && !want.ReadOnly && !a.ReadOnly {
			return fmt.Errorf("volume %s is attached for writing to node %s: %w", v.Handle, a.Node, errHeldElsewhere)
		}
	}
	return nil
}

// holderNames lists the nodes that hold the volume. The gate is held.
func (v *volume) holderNames() []string { return slices.Sorted(maps.Keys(v.holders)) }

// countHeld counts the driver's volumes on the node, except one. mu is held.
func (f *fabric) countHeld(driver, node, except string) int {
	held := 0
	for _, v := range f.volumes {
		v.gate.RLock()
		if _, ok := v.holders[node]; ok && v.Driver == driver && v.Handle != except {
			held++
		}
		v.gate.RUnlock()
	}
	return held
}

// detach ends the node's hold on the volume, or, for the empty node, everyone's. When it returns no I/O of theirs is
// under way and none will be admitted. A volume that is not attached, or not known, is no error.
func (f *fabric) detach(driver, handle, node string) error {
	v, err := f.get(driver, handle)
	if err != nil {
		return nil //nolint:nilerr // what does not exist is not attached
	}
	v.gate.Lock()
	if node == "" {
		clear(v.holders)
	} else {
		delete(v.holders, node)
	}
	v.gate.Unlock()
	return f.save()
}

// register makes a node known, or changes what is known of it. A new incarnation ends a cut and all I/O of the old one.
func (f *fabric) register(n Node) error {
	if n.Name == "" {
		return errors.New("a node needs a name")
	}
	f.mu.Lock()
	known := f.nodes[n.Name]
	if known == nil {
		known = &node{name: n.Name, zone: DefaultZone}
		known.incarnation.Store(new(string))
		f.nodes[n.Name] = known
	}
	if n.Zone != "" {
		known.zone = n.Zone
		known.maxVolumes = n.MaxVolumes
	}
	if n.Incarnation != "" && n.Incarnation != *known.incarnation.Load() {
		known.incarnation.Store(&n.Incarnation)
		known.cut.Store(false)
	}
	f.mu.Unlock()
	f.drain()
	return f.save()
}

// cut refuses all I/O of the node, or admits it again. When it returns no I/O from before is under way.
func (f *fabric) cut(name string, cut bool) error {
	f.mu.Lock()
	n := f.nodes[name]
	f.mu.Unlock()
	if n == nil {
		return fmt.Errorf("node %q: %w", name, errNodeNotFound)
	}
	n.cut.Store(cut)
	f.drain()
	return f.save()
}
