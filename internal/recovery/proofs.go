package recovery

import (
	"maps"
	"slices"
	"sync"
	"time"

	"belay.dev/belay/internal/fencing"
)

// Proofs are what the actor of this process has proven, and what it knows to run, for the attach/detach controller in the same process. The
// zero value has none.
type Proofs struct {
	mu     sync.Mutex
	proofs map[string]fencing.Proof // by NodeFence: a node has one for each machine of its name that is being fenced
	lives  map[string]fencing.Life  // of the power switches, by NodeFence
	onNew  []func(node string)
	ear    *listener // knows the leases; nil before Setup
}

// Of returns the proofs about the boots of a node.
func (p *Proofs) Of(node string) (of []fencing.Proof) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(p.proofs)) {
		if proof := p.proofs[name].At(time.Now()); proof.Class() != "" && proof.Boot().Node == node {
			of = append(of, proof)
		}
	}
	return of
}

// Lives returns which boots of a node run: those that a power switch says are on, and the one that the Node shows and its lease vouches for.
func (p *Proofs) Lives(shown fencing.Boot) (lives []fencing.Life) {
	p.mu.Lock()
	ear := p.ear
	for _, name := range slices.Sorted(maps.Keys(p.lives)) {
		if life := p.lives[name].At(time.Now()); life.Sign() != "" && life.Node() == shown.Node {
			lives = append(lives, life)
		}
	}
	p.mu.Unlock()
	if ear == nil {
		return lives
	}
	if life := ear.life(shown); life.Sign() != "" {
		lives = append(lives, life)
	}
	return lives
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

// decided takes what a decision on a NodeFence knows: its proof, and which boot runs. No proof takes back what was proven before. No sign of life takes
// nothing back, unless the end of the boot is proven: it ends by itself.
func (p *Proofs) decided(fence string, d fencing.Decision) {
	proof := d.Proof
	if p == nil {
		return
	}
	p.mu.Lock()
	if p.proofs == nil {
		p.proofs, p.lives = map[string]fencing.Proof{}, map[string]fencing.Life{}
	}
	switch {
	case proof.Class() != "" && proof.Class() != fencing.StorageFenced:
		delete(p.lives, fence)
	case d.Life.Sign() != "":
		p.lives[fence] = d.Life
	}
	before := p.proofs[fence]
	delete(p.proofs, fence)
	if proof.Class() != "" {
		p.proofs[fence] = proof
	}
	maps.DeleteFunc(p.lives, func(_ string, l fencing.Life) bool { return l.At(time.Now()).Sign() == "" })
	call := p.onNew
	p.mu.Unlock()
	if proof.Class() == "" || proof.Equal(before) {
		return
	}
	for _, f := range call {
		f(proof.Boot().Node)
	}
}
