package attacher

import (
	"slices"

	"belay.dev/belay/internal/publication"
)

// volumeRecords are the records of one volume. They are also kept by place, and by node, once one is asked for, as is done only for a shared volume,
// which may have thousands.
type volumeRecords struct {
	all     []*record
	byPlace map[string][]*record // by the node IDs of their calls, and by ofNode
}

func (v *volumeRecords) add(r *record) {
	v.all = append(v.all, r)
	v.index(r, nil, v.placesOf(r, r.call))
}

func (v *volumeRecords) remove(r *record) {
	v.all = without(v.all, r)
	v.index(r, v.placesOf(r, r.call), nil)
}

// moved updates the index after the calls of a record have changed.
func (v *volumeRecords) moved(r *record, before publication.Call) {
	v.index(r, v.placesOf(r, before), v.placesOf(r, r.call))
}

// ofNode is what the records of a node are indexed by. No node ID begins with a zero byte.
func ofNode(node string) string { return "\x00" + node }

func (v *volumeRecords) placesOf(r *record, c publication.Call) []string {
	if v.byPlace == nil {
		return nil
	}
	return append(c.NodeIDs(), ofNode(r.node))
}

// at returns the records with a call for a node ID, or ofNode.
func (v *volumeRecords) at(place string) []*record {
	if v.byPlace == nil {
		v.byPlace = map[string][]*record{}
		for _, r := range v.all {
			v.index(r, nil, v.placesOf(r, r.call))
		}
	}
	return v.byPlace[place]
}

func (v *volumeRecords) index(r *record, was, is []string) {
	if v.byPlace == nil {
		return
	}
	for _, id := range was {
		if slices.Contains(is, id) {
			continue
		}
		if v.byPlace[id] = without(v.byPlace[id], r); len(v.byPlace[id]) == 0 {
			delete(v.byPlace, id)
		}
	}
	for _, id := range is {
		if !slices.Contains(was, id) {
			v.byPlace[id] = append(v.byPlace[id], r)
		}
	}
}

func without(records []*record, r *record) []*record {
	return slices.DeleteFunc(records, func(o *record) bool { return o == r })
}

// excludes reports whether a call in flight excludes an attempt (S4). Two node IDs of one Node may be those of one machine.
func (v *volumeRecords) excludes(a attempt, exclusive bool) bool {
	records := v.all
	if !exclusive {
		records = slices.Concat(v.at(a.nodeID), v.at(ofNode(a.node)))
	}
	return slices.ContainsFunc(records, func(r *record) bool {
		return r.call.Excludes(exclusive, r.call.NodeID == a.nodeID || r.node == a.node)
	})
}
