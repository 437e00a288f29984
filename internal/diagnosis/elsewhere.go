package diagnosis

import (
	"belay.dev/belay/internal/attachment"
	"belay.dev/belay/internal/decision"
	"belay.dev/belay/internal/explain"
	"belay.dev/belay/internal/kube"
)

// listedElsewhere finds that the driver lists an exclusive volume at another node than a VolumeAttachment is for, as belay-attacher has written on it.
func (x *state) listedElsewhere(key attachment.VolumeKey, v *Volume) (found []Finding) {
	if x.shared(key) == decision.Yes {
		return nil
	}
	for _, va := range x.attached[key] {
		e, ok := kube.ElsewhereOf(va, x.Now)
		if !ok {
			continue
		}
		at := "the machine with the node ID " + x.foreign(e.NodeID)
		if e.Node != "" {
			at = "node " + x.foreign(e.Node) + " (node ID " + x.foreign(e.NodeID) + ")"
		}
		known := x.nodes[e.Node] != nil
		w := wait{reason: explain.PublishedElsewhere, since: e.Since, detail: "as its lists have shown since " + stamp(e.Since)}
		x.askable(&w, key.Driver, key.Handle)
		if w.answer.ListedAt = at; known {
			w.answer.OtherNode = e.Node
		}
		h := x.holder(key, va.Spec.NodeName)
		h.Attachment = va.Name
		f := x.finding(nil, w, v, &h)
		f.Subject, f.Holders = Ref{Resource: Volumes, Name: v.PersistentVolume}, []Holder{h}
		if known && e.Node != va.Spec.NodeName {
			f.Holders = append(f.Holders, x.holder(key, e.Node))
		}
		found = append(found, f)
	}
	return found
}
