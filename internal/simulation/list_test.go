package simulation

import (
	"maps"
	"slices"
	"strings"

	csispec "github.com/container-storage-interface/spec/lib/go/csi"
	storagev1 "k8s.io/api/storage/v1"

	"belay.dev/belay/internal/kube"
)

// honesty is how far the driver's list of volumes can be relied upon in a seed.
type honesty int

const (
	honest    honesty = iota
	forgetful         // names no node of any volume
	sparse            // leaves the volumes out
	shouting          // names nodes in another form
	untidy            // as honest, with empty and repeated node IDs, as the GCE PD driver
)

// truthful: what the list says of a volume is so.
func (h honesty) truthful() bool { return h == honest || h == untidy }

// listVolumes returns what the storage gives access to now, or what the seed makes of it. The attacher's own clock triggers it, so
// it waits for no event.
func (p *attacherProcess) listVolumes() *csispec.ListVolumesResponse {
	s := p.sim
	s.storage.mu.Lock()
	defer s.storage.mu.Unlock()
	reply := &csispec.ListVolumesResponse{}
	for _, d := range s.disks {
		if d.key().Driver != p.driver.name || p.driver.honesty == sparse {
			continue
		}
		ids := slices.Sorted(maps.Keys(s.storage.published[d.handle]))
		for i := range ids {
			ids[i] = p.driver.inForm(ids[i])
			if p.driver.honesty == shouting {
				ids[i] = strings.ToUpper(ids[i])
			}
		}
		switch p.driver.honesty {
		case forgetful:
			ids = nil
		case untidy:
			ids = slices.Concat(make([]string, len(ids)), ids, ids)
		}
		reply.Entries = append(reply.Entries, &csispec.ListVolumesResponse_Entry{
			Volume: &csispec.Volume{VolumeId: d.key().Handle},
			Status: &csispec.ListVolumesResponse_VolumeStatus{PublishedNodeIds: ids},
		})
	}
	return reply
}

// steal lets another client take a volume from a node at the storage.
func (s *sim) steal() {
	d, m := s.disks[s.others.IntN(len(s.disks))], s.machines[machineNames[s.others.IntN(len(machineNames))]]
	s.storage.mu.Lock()
	defer s.storage.mu.Unlock()
	if s.storage.published[d.handle][s.nodeID(m, d.handle)] && !s.busyWith(d.handle) {
		s.say("another client takes %s from %s", d.handle, m)
		delete(s.storage.published[d.handle], s.nodeID(m, d.handle))
	}
}

// busyWith: a call for a volume has not landed.
func (s *sim) busyWith(handle string) bool {
	of := func(c *call) bool { return c.volume == handle }
	return slices.ContainsFunc(s.storage.underway(), of) || slices.ContainsFunc(s.storage.arrived, of)
}

// unmended finds a volume that is recorded as attached and not published, although the
// driver's list says so.
func (s *sim) unmended() string {
	for _, d := range s.disks {
		if of := s.driverOf(d); of == nil || !of.honesty.truthful() {
			continue
		}
		for _, name := range machineNames {
			va, ok := get[*storagev1.VolumeAttachment](s.api, attachmentName(d.handle, name))
			if !ok || va.Annotations[kube.NodeIDAnnotation] != s.driverOf(d).inForm(recordedID(va)) {
				continue // not repaired while the node has another ID
			}
			if va.Status.Attached && !s.storage.published[d.handle][recordedID(va)] {
				return d.handle + " was taken from " + name + " and not published again"
			}
		}
	}
	return ""
}
