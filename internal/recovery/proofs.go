package recovery

import (
	"sync"
	"time"

	"belay.dev/belay/internal/fencing"
)

// Proofs are what the actor of this process has proven, for the attach/detach controller in the same process. The zero value has none.
type Proofs struct {
	mu     sync.Mutex
	byNode map[string]held
	onNew  []func(node string)
}

type held struct {
	proof fencing.Proof
	at    time.Time
}

// keepFor is how long a proof is given out. The actor renews it well before that.
const keepFor = 30 * time.Second

// Of returns the proof about a node, which proves nothing if there is none.
func (p *Proofs) Of(node string) fencing.Proof {
	p.mu.Lock()
	defer p.mu.Unlock()
	h, known := p.byNode[node]
	if !known || time.Since(h.at) >= keepFor {
		return fencing.Proof{}
	}
	return h.proof
}

// OnNew has a function called with the name of each node that a new proof, or one about other volumes, is about.
func (p *Proofs) OnNew(call func(node string)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.onNew = append(p.onNew, call)
}

// decided takes the proof of a decision; one that proves nothing takes back what was proven before.
func (p *Proofs) decided(node string, proof fencing.Proof) {
	if p == nil {
		return
	}
	p.mu.Lock()
	if p.byNode == nil {
		p.byNode = map[string]held{}
	}
	before := p.byNode[node].proof
	delete(p.byNode, node)
	if proof.Class() != "" {
		p.byNode[node] = held{proof, time.Now()}
	}
	call := p.onNew
	p.mu.Unlock()
	if proof.Class() == "" || proof.Equal(before) {
		return
	}
	for _, f := range call {
		f(node)
	}
}
