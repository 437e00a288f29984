package recovery

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	fencingv1 "belay.dev/belay/api/fencing/v1alpha1"
	"belay.dev/belay/internal/explain"
	"belay.dev/belay/internal/fencing"
	"belay.dev/belay/internal/kube"
)

// fenceMachine is kube.FenceMachineAnnotation.
const fenceMachine = kube.FenceMachineAnnotation

// levels are the ways to switch one machine off, in order. The switches of one level must all be off.
type levels [][]Switch

// reply is what the switches of a level said.
type reply struct {
	power    fencing.Power
	hardware string // the identity that they gave, empty for none
	raw      string
	level    int
	// took is how long they were asked. failed is set if one of them gave no answer, and refused if it refused the login.
	took            time.Duration
	failed, refused bool
}

// machine is the identity of the answer: what the hardware gave. A source whose hardware gives none is bound by a person's word, which the
// fence was checked against (fencing.Serve).
func (r reply) machine(bound string) string {
	if r.hardware == "" && r.power != fencing.PowerUnknown {
		return bound
	}
	return r.hardware
}

var errDial = errors.New("configure fence agent")

// dialReason is the reason of the condition FenceReady for an error of dial.
func dialReason(err error) string {
	switch {
	case errors.Is(err, ErrOffUntested):
		return string(explain.OffUntested)
	case errors.Is(err, errUnbound):
		return string(explain.SecretNotBound)
	case errors.Is(err, ErrNoAgent):
		return string(explain.AgentUnusable)
	case errors.Is(err, errDial):
		return string(explain.OptionsRefused)
	}
	return reasonSecret
}

// distrusted is a switch whose Off does not count. It is not asked, and not commanded.
type distrusted struct{ err error }

// Status is not known.
func (d distrusted) Status(context.Context) (fencing.Power, string, error) {
	return fencing.PowerUnknown, "", d.err
}

// Off does nothing.
func (d distrusted) Off(context.Context) error { return d.err }

// Identity is not known.
func (d distrusted) Identity(context.Context) (string, error) { return "", d.err }

// dial returns the switches of a node, and by level the versions of the Secrets that they log in with. It is an error if the Off of no level counts.
func (f *fencer) dial(ctx context.Context, source *fencingv1.FenceSource) (levels, []string, error) {
	var all levels
	var versions []string
	var untested error
	counts := false
	for _, level := range source.Spec.Levels {
		var switches []Switch
		var secrets []string
		for _, feed := range level.Feeds {
			var data map[string][]byte
			if ref := feed.SecretRef; ref != nil {
				secret := &corev1.Secret{}
				// From --v=8 on client-go logs the bodies of answers.
				if err := f.live.Get(klog.NewContext(ctx, logr.Discard()), client.ObjectKey{Namespace: ref.Namespace, Name: ref.Name}, secret); err != nil {
					return nil, nil, fmt.Errorf("read Secret %s/%s: %w", ref.Namespace, ref.Name, err)
				}
				if err := unbound(secret, feed); err != nil {
					return nil, nil, err
				}
				data, secrets = secret.Data, append(secrets, secret.ResourceVersion)
			}
			s, err := f.Dial(feed, data)
			switch {
			case errors.Is(err, ErrOffUntested):
				s, untested = distrusted{err}, fmt.Errorf("%w %s: %w", errDial, feed.Agent, err)
			case err != nil:
				return nil, nil, fmt.Errorf("%w %s: %w", errDial, feed.Agent, err)
			}
			switches = append(switches, s)
		}
		all, versions = append(all, switches), append(versions, strings.Join(secrets, ","))
		counts = counts || !slices.ContainsFunc(switches, func(s Switch) bool { _, no := s.(distrusted); return no })
	}
	if !counts && untested != nil {
		return nil, nil, untested
	}
	return all, versions, nil
}

// knownLevels are those that count also where their hardware gives no identity: they said On under the boot that is bound, as the source is
// configured now.
func knownLevels(source *fencingv1.FenceSource) []int32 {
	if b := source.Status.Bound; b != nil && b.Generation == source.Generation {
		return b.Levels
	}
	return nil
}

// exercise asks levels side by side, so that each is known before it is needed. It returns the answer of the first that answers, which levels said On, and
// which of them cannot be what they were when they did.
func (l levels) exercise(ctx context.Context, of logins, due []int) (first reply, on, spoilt []int32) {
	answers := make([]reply, len(l))
	var group sync.WaitGroup
	for _, i := range due {
		group.Go(func() { answers[i] = askLevel(ctx, l[i], nil, true) })
	}
	group.Wait()
	var said []string
	for _, i := range due {
		r := answers[i]
		of.note(i, r)
		if s := of.state(i); r.power == fencing.PowerUnknown {
			s.missed, s.missedAt = s.missed+1, of.now
		}
		said = append(said, r.raw)
		switch {
		case r.power == fencing.PowerOn:
			on = append(on, int32(i))
		case !r.failed:
			spoilt = append(spoilt, int32(i))
		}
		if first.power == fencing.PowerUnknown {
			first = r
			first.level = i
		}
	}
	first.raw = strings.Join(said, "; ")
	return first, on, spoilt
}

// order is a command to switch a machine off.
type order struct {
	machine string
	// stands returns why the command is not to be sent any more. It is called last, since the switch may take long to show whose it is, and for all
	// switches of a level at the same time.
	stands func(ctx context.Context) error
}

// ask asks the levels in order until one gives a clear answer. With an order, its switches are switched off before that.
func (l levels) ask(ctx context.Context, of logins, off *order, known []int32) reply {
	begun, said := time.Now(), of.refused()
	for _, i := range of.inOrder() {
		r := askLevel(ctx, l[i], off, slices.Contains(known, int32(i)))
		of.note(i, r)
		said = append(said, r.raw)
		if r.power != fencing.PowerUnknown {
			r.raw, r.level, r.took = strings.Join(said, "; "), i, time.Since(begun)
			return r
		}
	}
	return reply{raw: strings.Join(said, "; "), failed: true, took: time.Since(begun)}
}

// errUnknownLevel is the answer of hardware without an identity that has not said On while the node lived.
var errUnknownLevel = errors.New("its hardware gives no identity, and it has not said On while the node lived, or another machine has the name of the node since")

// askLevel asks all switches of a level side by side: On if one of them is, Off if all are at the same time, Unknown otherwise. Whether it is known counts where
// its hardware gives no identity.
func askLevel(ctx context.Context, level []Switch, off *order, known bool) reply {
	ctx, cancel := context.WithTimeout(ctx, fencing.LevelWithin)
	defer cancel()
	begun, answers := time.Now(), make([]reply, len(level))
	var group sync.WaitGroup
	for i, s := range level {
		group.Go(func() { answers[i] = askSwitch(ctx, s, off, known) })
	}
	group.Wait()
	last := time.Duration(0)
	for _, a := range answers {
		last = max(last, a.took)
	}
	for i, s := range level { // a machine with two feeds loses its power when both are off
		if a := &answers[i]; a.power == fencing.PowerOff && last-a.took > fencing.FreshFor {
			group.Go(func() { a.again(ctx, s, begun) })
		}
	}
	group.Wait()
	r := together(answers)
	r.took = time.Since(begun)
	return r
}

// again asks a switch that said Off long before the others of its level did.
func (r *reply) again(ctx context.Context, s Switch, begun time.Time) {
	r.raw, r.took = r.raw+", "+r.readState(ctx, s), time.Since(begun)
}

// readState asks a switch for the state, and returns the text of its answer.
func (r *reply) readState(ctx context.Context, s Switch) (raw string) {
	power, raw, err := s.Status(ctx)
	if err != nil {
		power, raw, r.failed, r.refused = fencing.PowerUnknown, err.Error(), true, errors.Is(err, ErrRefused)
	}
	r.power = power
	return raw
}

// together is what the switches of a level say.
func together(answers []reply) (r reply) {
	if len(answers) > 0 {
		r.power = fencing.PowerOff
	}
	var said []string
	differ, first, last := false, time.Duration(0), time.Duration(0)
	for i, a := range answers {
		said = append(said, a.raw)
		if r.power != fencing.PowerOn && a.power != fencing.PowerOff {
			r.power = a.power
		}
		differ = differ || r.hardware != "" && a.hardware != "" && r.hardware != a.hardware
		r.hardware, r.failed, r.refused = cmp.Or(r.hardware, a.hardware), r.failed || a.failed, r.refused || a.refused
		if last = max(last, a.took); i == 0 || a.took < first {
			first = a.took
		}
	}
	switch {
	case differ:
		r.power, r.hardware, said = fencing.PowerUnknown, "", append(said, "two switches of one level give different identities")
	case r.power == fencing.PowerOff && last-first > fencing.FreshFor:
		r.power, said = fencing.PowerUnknown, append(said, fmt.Sprintf("the switches of one level said Off %v apart", (last-first).Round(time.Second)))
	}
	r.raw = strings.Join(said, ", ")
	return r
}

// askSwitch asks whose a switch is, and then for the state: that is read last, and after a command. A login that fails once is not repeated (hole 19).
func askSwitch(ctx context.Context, s Switch, off *order, known bool) (r reply) {
	begun := time.Now()
	defer func() { r.took = time.Since(begun) }()
	hardware, err := s.Identity(ctx)
	nameless := errors.Is(err, ErrNoIdentity)
	switch {
	case nameless && !known:
		return reply{raw: errUnknownLevel.Error()}
	case err != nil && !nameless:
		return reply{raw: "the identity of the hardware is unknown: " + err.Error(), failed: true, refused: errors.Is(err, ErrRefused)}
	}
	if !nameless {
		r.hardware = machineID(hardware)
	}
	var said []string
	if off != nil {
		if err := off.send(ctx, s, r.hardware, nameless); err != nil {
			said = append(said, err.Error())
		}
	}
	r.raw = strings.Join(append(said, r.readState(ctx, s)), ", ")
	return r
}

// send switches a machine off, if the switch is still its own: cables are swapped while nodes live, and a switch is exercised only
// once in a while (hole 6). Of one that gives no identity a person said whose it is.
func (o *order) send(ctx context.Context, s Switch, hardware string, nameless bool) error {
	if !nameless && hardware != o.machine {
		return fmt.Errorf("not switched off: the hardware is %s", hardware)
	}
	if err := o.stands(ctx); err != nil {
		return fmt.Errorf("not sent: %w", err)
	}
	return s.Off(ctx) //nolint:wrapcheck // the agent says what it attempted
}

// shared reports whether the source's switch, or the hardware behind it, is another Node's too (hole 6).
func (f *fencer) shared(ctx context.Context, source *fencingv1.FenceSource) (bool, error) {
	if same, err := f.sameSwitch(ctx, source); err != nil || same != nil {
		return true, err
	}
	return f.twin(ctx, source)
}

// sameSwitch returns another FenceSource that has one of the source's switches, nil for none.
func (f *fencer) sameSwitch(ctx context.Context, source *fencingv1.FenceSource) (*fencingv1.FenceSource, error) {
	all := &fencingv1.FenceSourceList{}
	if err := f.client.List(ctx, all, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list FenceSources in the cache: %w", err)
	}
	own := map[string]bool{}
	for _, k := range switchKeys(source) {
		own[k] = true
	}
	for i := range all.Items {
		if all.Items[i].Name == source.Name {
			continue
		}
		for _, k := range switchKeys(&all.Items[i]) {
			if own[k] {
				return &all.Items[i], nil
			}
		}
	}
	return nil, nil //nolint:nilnil // there is none
}

// twin reports whether the hardware behind the switch of another Node has the system UUID that the hardware behind this one's has, and that Node shows
// it: then it does not say which machine is which. A Node alone only claims one, because its kubelet writes it, and takes the switch from none:
// the machine decides who it is.
func (p *parts) twin(ctx context.Context, source *fencingv1.FenceSource) (bool, error) {
	name, err := p.twinOf(ctx, source)
	return name != "" || err != nil, err
}

// twinOf is the name of that Node, empty for none.
func (p *parts) twinOf(ctx context.Context, source *fencingv1.FenceSource) (string, error) {
	hardware := boundSource(source).Machine
	all, nodes := &fencingv1.FenceSourceList{}, &corev1.NodeList{}
	if err := p.client.List(ctx, all, client.UnsafeDisableDeepCopy); err != nil {
		return "", fmt.Errorf("list FenceSources in the cache: %w", err)
	}
	if err := p.client.List(ctx, nodes, client.UnsafeDisableDeepCopy); err != nil {
		return "", fmt.Errorf("list nodes in the cache: %w", err)
	}
	confirms := map[string]bool{}
	for i := range all.Items {
		if other := &all.Items[i]; other.Name != source.Name && hardware != "" && boundSource(other).Machine == hardware {
			confirms[other.Name] = true
		}
	}
	if at := slices.IndexFunc(nodes.Items, func(n corev1.Node) bool { return confirms[n.Name] && bootOf(&n).Machine == hardware }); at >= 0 {
		return nodes.Items[at].Name, nil
	}
	return "", nil
}

// claimedOf names a Node that shows the system UUID of this one too. Where the hardware of that Node has it, the kubelet of this one is the suspect: it
// writes what its Node shows. This is a text for a person, and decides nothing.
func (p *parts) claimedOf(ctx context.Context, boot fencing.Boot) string {
	all, nodes := &fencingv1.FenceSourceList{}, &corev1.NodeList{}
	if p.client.List(ctx, all, client.UnsafeDisableDeepCopy) != nil || p.client.List(ctx, nodes, client.UnsafeDisableDeepCopy) != nil || boot.Machine == "" {
		return ""
	}
	confirms := map[string]bool{}
	for i := range all.Items {
		confirms[all.Items[i].Name] = boundSource(&all.Items[i]).Machine == boot.Machine
	}
	var rest []string
	for i := range nodes.Items {
		switch n := &nodes.Items[i]; {
		case n.Name == boot.Node || bootOf(n).Machine != boot.Machine:
		case confirms[n.Name]:
			return ", as does the Node " + n.Name + ", whose own hardware has it: the kubelet of node " + boot.Node + " is the suspect, because it writes what its Node shows"
		default:
			rest = append(rest, n.Name)
		}
	}
	if len(rest) == 0 {
		return ""
	}
	slices.Sort(rest)
	return ", as does the Node " + rest[0] + ", whose hardware is unknown"
}

// carried reports whether another Node has the system UUID of a boot, which then does not say that two machines are the same.
func carried(nodes *corev1.NodeList, boot fencing.Boot) bool {
	return slices.ContainsFunc(nodes.Items, func(n corev1.Node) bool {
		return boot.Machine != "" && n.Name != boot.Node && bootOf(&n).Machine == boot.Machine
	})
}

// switchKeys names the switches of a source by address and plug; one without a plug may be one of several BMCs behind one address. The names of
// the options are those of the fence-agents family, old and new.
func switchKeys(source *fencingv1.FenceSource) (keys []string) {
	for _, level := range source.Spec.Levels {
		for _, feed := range level.Feeds {
			option := func(names ...string) string {
				for _, n := range names {
					if v, ok := feed.Options[n]; ok {
						return string(v)
					}
				}
				return ""
			}
			address := option("ip", "ipaddr")
			if address == "" {
				address = feed.Agent // a command that needs no address
			}
			port := option("ipport")
			if feed.Plug != "" { // an outlet gives no identity, and a port may be written or be the default
				port = ""
			}
			address = strings.TrimSuffix(strings.ToLower(strings.TrimSpace(address)), ".")
			keys = append(keys, strings.Join([]string{address, port, option("systems_uri", "systems-uri"), strings.TrimSpace(feed.Plug)}, "|"))
		}
	}
	return keys
}

// maxText is the longest text of an answer that is kept, and of an event (k8s.io/kubernetes v1.36.3 pkg/apis/core/validation/events.go NoteLengthLimit).
const maxText = 1024

func truncate(s string) string {
	if len(s) <= maxText {
		return s
	}
	return strings.ToValidUTF8(s[:maxText], "")
}
