package recovery

import (
	"fmt"
	"slices"
	"time"

	fencingv1 "belay.dev/belay/api/fencing/v1alpha1"
	"belay.dev/belay/internal/fencing"
)

const (
	// maxLogins is how often a level may refuse the login, in a row and with one version of its Secrets, before it is not asked any more: BMCs lock the
	// accounts of those who guess (hole 19). No answer is no refusal: a level that gives none is asked less often, and never left out for good.
	maxLogins = 3
	// refusedFor is how long a level that refused the login is not asked. A BMC may answer 401 for a while although user and password are right
	// (github.com/dsx-ai-factory/infra-controller#69: HPE's do "even when site-wide credentials are already set and manual curls with those credentials
	// succeed"; #5349: NVIDIA's too), and an iDRAC that starts again needs two minutes (redhat-performance/jetlag#778: "up to ~2 minutes before its Redfish
	// Systems endpoint responds again"), which three logins span so. It is also the time in which an iDRAC counts failures in the example of its manual
	// ("five login attempts in a one-minute period", iDRAC6 User's Guide, page 293): no minute has two.
	refusedFor = time.Minute
	// longAnswer is from when on a level that gives no answer costs the others their time.
	longAnswer = 5 * time.Second
	// restFor is how long such a level is asked after the others.
	restFor = time.Minute
	// maxRest is the most time between two exercises of a level that gave no answer, and maxGuess of one that never gave one with these Secrets: it
	// may be one that refuses, whose agent does not say so.
	maxRest, maxGuess = 4 * time.Minute, time.Hour
)

// levelState is what this process knows about one level.
type levelState struct {
	key string // what it was asked with
	// silent is when it last took long to give no clear answer, unless it has given one since.
	silent time.Time
	// missed is how often in a row it gave none while its node lived, and missedAt when it last did. A silent node says nothing about its switch, which may
	// have lost its power too.
	missed   int
	missedAt time.Time
	// worked is set once it has given one.
	worked bool
	// refusedAt is when it last refused the login, unless it has given a clear answer since.
	refusedAt time.Time
}

// logins are the levels of a source as they are asked now: what is recorded of their logins, and what this process knows.
type logins struct {
	source   *fencingv1.FenceSource
	versions []string // of the Secrets, by level
	states   map[int]*levelState
	now      time.Time
}

func (s *sourceState) logins(source *fencingv1.FenceSource, versions []string, now time.Time) logins {
	return logins{source, versions, s.levels, now}
}

// state is forgotten once the FenceSource or the Secrets have changed.
func (l logins) state(level int) *levelState {
	key := fmt.Sprint(l.source.Generation, "/", l.versions[level])
	s := l.states[level]
	if s == nil || s.key != key {
		s = &levelState{key: key, worked: s == nil && slices.Contains(knownLevels(l.source), int32(level))}
		l.states[level] = s
	}
	return s
}

// record is what is stored of the refusals of a level with these Secrets, nil for none.
func (l logins) record(level int) *fencingv1.RefusedLogins {
	i := slices.IndexFunc(l.source.Status.Refused, func(r fencingv1.RefusedLogins) bool {
		return r.Level == int32(level) && r.SecretVersion == l.versions[level] && r.Generation == l.source.Generation
	})
	if i < 0 {
		return nil
	}
	return &l.source.Status.Refused[i]
}

// open are the levels that may be asked.
func (l logins) open() (levels []int) {
	for i := range l.versions {
		if r := l.record(i); r == nil || r.Times < maxLogins {
			levels = append(levels, i)
		}
	}
	return levels
}

// waits reports whether a level has just refused the login.
func (l logins) waits(level int) bool {
	s := l.state(level)
	return !s.refusedAt.IsZero() && l.now.Sub(s.refusedAt) < refusedFor
}

// mayAsk are the levels that may be asked now.
func (l logins) mayAsk() []int { return slices.DeleteFunc(l.open(), l.waits) }

// refused are the texts about the levels that are not asked, because they have just refused the login.
func (l logins) refused() (texts []string) {
	for _, i := range l.open() {
		if l.waits(i) {
			texts = append(texts, fmt.Sprintf("spec.levels[%d] refused the login, and is not asked for a minute after that", i))
		}
	}
	return texts
}

// inOrder are the levels that may be asked now, in the order in which they are. One that has just taken long to give no answer comes after the others:
// what it takes is what the next one lacks, and a command is carried out in fencing.IntentFor or not at all.
func (l logins) inOrder() (levels []int) {
	var resting []int
	for _, i := range l.mayAsk() {
		if s := l.state(i); !s.silent.IsZero() && l.now.Sub(s.silent) < restFor {
			resting = append(resting, i)
			continue
		}
		levels = append(levels, i)
	}
	return append(levels, resting...)
}

// due are the levels that are exercised now.
func (l logins) due() (levels []int) {
	for _, i := range l.mayAsk() {
		s, limit := l.state(i), maxGuess
		if s.worked {
			limit = maxRest
		}
		rest := min(exerciseEvery<<min(max(s.missed-2, 0), 8), limit)
		if s.missed < 2 || l.now.Sub(s.missedAt) >= rest {
			levels = append(levels, i)
		}
	}
	return levels
}

// note takes what a level answered. A clear answer forgets what was before it.
func (l logins) note(level int, r reply) {
	s, record := l.state(level), l.record(level)
	if r.power == fencing.PowerUnknown && r.took >= longAnswer {
		s.silent = l.now.Add(r.took)
	}
	if r.refused {
		s.refusedAt = l.now
	}
	if r.power == fencing.PowerUnknown && !r.refused {
		return
	}
	status := &l.source.Status
	if record == nil { // what is stored is about other Secrets
		status.Refused = slices.DeleteFunc(status.Refused, func(r fencingv1.RefusedLogins) bool { return r.Level == int32(level) })
	}
	switch {
	case !r.refused: // a clear answer
		*s = levelState{key: s.key, worked: true}
		status.Refused = slices.DeleteFunc(status.Refused, func(r fencingv1.RefusedLogins) bool { return r.Level == int32(level) })
	case record == nil:
		status.Refused = append(status.Refused, fencingv1.RefusedLogins{Level: int32(level), SecretVersion: l.versions[level], Generation: l.source.Generation, Times: 1})
	default:
		record.Times++
	}
}
