package attacher

import (
	"context"
	"slices"
	"strconv"
	"sync"

	csispec "github.com/container-storage-interface/spec/lib/go/csi"

	"belay.dev/belay/internal/testing/csidriver"
)

// canList is what a driver needs for its list to be compared.
var canList = append(slices.Clone(canAttach),
	csispec.ControllerServiceCapability_RPC_LIST_VOLUMES,
	csispec.ControllerServiceCapability_RPC_LIST_VOLUMES_PUBLISHED_NODES)

// array is a storage that does what the driver requests, and what other clients request behind the attacher's back.
type array struct {
	mu        sync.Mutex
	volumes   []string            // in the order of their making
	published map[string][]string // node IDs by volume
	hides     func(volume string) bool
	renames   func(nodeID string) string
}

// attachArray puts an array behind a driver.
func attachArray(d *csidriver.Driver) *array {
	s := &array{published: map[string][]string{}, hides: func(string) bool { return false }, renames: func(id string) string { return id }}
	d.SetAnswer(func(_ context.Context, c call, _ int) (map[string]string, error) {
		s.serve(c)
		return nil, nil
	})
	d.SetList(s.list)
	return s
}

func (s *array) serve(c call) {
	if c.Method == "Publish" {
		s.put(c.Volume, c.Node)
	} else {
		s.take(c.Volume, c.Node)
	}
}

// heldElsewhere reports whether a volume is published to another node.
func (s *array) heldElsewhere(volume, nodeID string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.ContainsFunc(s.published[volume], func(id string) bool { return id != nodeID })
}

// put publishes a volume.
func (s *array) put(volume, nodeID string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.putLocked(volume, nodeID)
}

func (s *array) putLocked(volume, nodeID string) {
	if !slices.Contains(s.volumes, volume) {
		s.volumes = append(s.volumes, volume)
	}
	if nodeID != "" && !slices.Contains(s.published[volume], nodeID) {
		s.published[volume] = append(s.published[volume], nodeID)
	}
}

// take takes a volume from a node.
func (s *array) take(volume, nodeID string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.takeLocked(volume, nodeID)
}

func (s *array) takeLocked(volume, nodeID string) {
	s.published[volume] = slices.DeleteFunc(slices.Clone(s.published[volume]), func(id string) bool { return id == nodeID })
}

// move takes a volume from one node to another; no list shows it at neither.
func (s *array) move(volume, from, to string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.takeLocked(volume, from)
	s.putLocked(volume, to)
}

// list pages by position.
func (s *array) list(_ context.Context, r *csispec.ListVolumesRequest) (*csispec.ListVolumesResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	from := 0
	if r.GetStartingToken() != "" {
		from, _ = strconv.Atoi(r.GetStartingToken())
	}
	reply := &csispec.ListVolumesResponse{}
	for i, volume := range s.volumes[from:] {
		if r.GetMaxEntries() > 0 && i == int(r.GetMaxEntries()) {
			reply.NextToken = strconv.Itoa(from + i)
			break
		}
		if s.hides(volume) {
			continue
		}
		var ids []string
		for _, id := range s.published[volume] {
			ids = append(ids, s.renames(id))
		}
		reply.Entries = append(reply.Entries, listed(volume, ids...))
	}
	return reply, nil
}

// listed is one entry of a list.
func listed(volume string, nodeIDs ...string) *csispec.ListVolumesResponse_Entry {
	return &csispec.ListVolumesResponse_Entry{
		Volume: &csispec.Volume{VolumeId: volume},
		Status: &csispec.ListVolumesResponse_VolumeStatus{PublishedNodeIds: nodeIDs},
	}
}
