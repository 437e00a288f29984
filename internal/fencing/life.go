package fencing

import "time"

// LifeFor is how long a Life counts after the sign of life behind it: longer than an answer authorizes anything (FreshFor), because a wait
// must not end by chance between two questions. What a switch takes to answer comes on top, for this question and the next.
const LifeFor = 30 * time.Second

// Sign is what shows that a boot runs.
type Sign string

// The signs of life. What is not here is none: a Node that is Ready, a port that answers, an answer to another process.
const (
	// SaysOn: the power switch that is bound to the boot said On to a question of this process.
	SaysOn Sign = "PoweredOn"
	// Renews: the node renewed its lease, as this process saw, while the Node showed the boot.
	Renews Sign = "LeaseRenewed"
)

// Life says that a boot runs: the opposite of a Proof. It permits nothing, and keeps a policy that is no evidence from taking volumes from
// the boot. Only this package makes one. The zero value says nothing: that there is no sign of life is no sign of death.
type Life struct {
	boot  Boot
	sign  Sign
	until time.Time
}

// Sign is what shows that the boot runs; empty for the zero value.
func (l Life) Sign() Sign { return l.sign }

// Node is the name of the node whose boot runs.
func (l Life) Node() string { return l.boot.Node }

// At returns the Life if it still counts, on the clock of the process that made it, and the zero value otherwise.
func (l Life) At(now time.Time) Life {
	if !now.Before(l.until) {
		return Life{}
	}
	return l
}

// Of reports whether it is this boot that runs. The Node object does not matter: the machine runs also under another one, or none.
func (l Life) Of(b Boot) bool {
	return l.sign != "" && b.ID != "" && b.Machine != "" && l.boot.Node == b.Node && l.boot.ID == b.ID && l.boot.Machine == b.Machine
}

// life is what the power switch says about the boot of the fence now.
func (d *decider) life() Life {
	source, boot := d.seen.Source, d.fence.Boot
	if !source.bound(boot) || !source.Status.fresh(d.now) || !source.contradicts(boot) {
		return Life{}
	}
	return Life{boot: boot, sign: SaysOn, until: source.Status.given().Add(source.Status.took() + LifeFor)}
}

// Life returns that a boot runs which its Node shows, if the lease was renewed within the node's limit while this process listened. A lease
// that was only read is no sign of life.
func (s *Silences) Life(now time.Time, p Profile, shown Boot) Life {
	h, known := s.heard[shown.Node]
	until := h.renewed.Add(p.Limit(h.lease))
	if !known || now.Before(h.renewed) || !now.Before(until) || !shown.Complete() {
		return Life{}
	}
	return Life{boot: shown, sign: Renews, until: until}
}

// Endpoint is what a request to the kubelet's port says about the node. The owner of the key that the kubelet's certificate had while the node
// lived is that kubelet. An answer with another key says nothing: the address may have gone to another machine, or the certificate was renewed after
// it was last seen. While no key is known, every answer is a sign of life.
func Endpoint(answered Knowledge, key, remembered string) Knowledge {
	if answered == Yes && remembered != "" && key != remembered {
		return Unknown
	}
	return answered
}
