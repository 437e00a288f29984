package recovery

import (
	"sync"
	"time"

	"belay.dev/belay/internal/fencing"
)

// Proofs are what the actor of this process has proven, and what it knows to run, for the attach/detach controller in the same process. The
// zero value has none.
type Proofs struct {
	mu     sync.Mutex
	byNode map[string]fencing.Proof
	lives  map[string]fencing.Life // of the power switches
	onNew  []func(node string)
	ear    *listener // knows the leases; nil before Setup
}

// Of returns the proof about a node, which proves nothing if there is none.
func (p *Proofs) Of(node string) fencing.Proof {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.byNode[node].At(time.Now())
}

// Life returns which boot of a node runs: the one that its power switch says is on, or the one that the Node shows and its lease vouches for.
func (p *Proofs) Life(shown fencing.Boot) fencing.Life {
	p.mu.Lock()
	life, ear := p.lives[shown.Node].At(time.Now()), p.ear
	p.mu.Unlock()
	if life.Sign() == "" && ear != nil {
		life = ear.life(shown)
	}
	return life
}

// listen sets where the leases are known.
func (p *Proofs) listen(ear *listener) {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ear = ear
}

// OnNew has a function called with the name of each node that a new proof, or one about other volumes, is about.
func (p *Proofs) OnNew(call func(node string)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.onNew = append(p.onNew, call)
}

// decided takes what a decision knows: its proof, and which boot runs. No proof takes back what was proven before. No sign of life takes
// nothing back, unless the end of the boot is proven: it ends by itself.
func (p *Proofs) decided(node string, d fencing.Decision) {
	proof := d.Proof
	if p == nil {
		return
	}
	p.mu.Lock()
	if p.byNode == nil {
		p.byNode, p.lives = map[string]fencing.Proof{}, map[string]fencing.Life{}
	}
	switch {
	case proof.Class() != "" && proof.Class() != fencing.StorageFenced:
		delete(p.lives, node)
	case d.Life.Sign() != "":
		p.lives[node] = d.Life
	}
	before := p.byNode[node]
	delete(p.byNode, node)
	if proof.Class() != "" {
		p.byNode[node] = proof
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
