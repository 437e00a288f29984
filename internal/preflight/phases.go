package preflight

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"belay.dev/belay/internal/kube"
)

// upstreamCheck names the check of kube-controller-manager, ownCheck that of belay-controller.
const (
	upstreamCheck = upstreamProgram
	ownCheck      = kube.FieldManager
)

// report judges the checks of a phase and names the next step.
func (r *run) report(checks []Check) Report {
	for i := range checks {
		if checks[i].Category = CategoryTakeOver; checks[i].Result != OK {
			checks[i].Hint = "docs/migrate.md"
		}
	}
	stops := func(c Check) bool { return c.Result != OK && c.Result != Warning }
	report := Report{Cluster: r.Cluster, Phase: cmp.Or(r.Phase, TakeOver), Ready: !slices.ContainsFunc(checks, stops), Checks: checks}
	report.Next = report.next()
	return report
}

// Verdict is the result in one sentence.
func (r *Report) Verdict() string {
	verdicts := map[Phase][2]string{
		Prepare: {
			"READY: the attach/detach controller of kube-controller-manager may be disabled.",
			"NOT READY: leave the attach/detach controller of kube-controller-manager enabled.",
		},
		TakeOver: {"READY: belay-controller may start.", "NOT READY: belay-controller must not start yet."},
		RollBack: {
			"READY: the attach/detach controller of kube-controller-manager may be enabled.",
			"NOT READY: the attach/detach controller of kube-controller-manager must not be enabled yet.",
		},
	}
	if r.Ready {
		return verdicts[r.Phase][0]
	}
	return verdicts[r.Phase][1]
}

// next is the next step of the migration.
func (r *Report) next() string {
	if !r.Ready {
		return r.obstacle()
	}
	switch r.Phase {
	case Prepare:
		return "disable persistentvolume-attach-detach-controller in every kube-controller-manager, one control-plane node after the other (docs/migrate.md), then run preflight without --phase"
	case RollBack:
		return "enable persistentvolume-attach-detach-controller in every kube-controller-manager (docs/migrate.md), then run kubectl belay check --wait"
	case TakeOver:
	}
	return "install belay-controller now, because no other controller attaches volumes, then run kubectl belay check --wait"
}

// obstacle is what to do about what stops the next step.
func (r *Report) obstacle() string {
	upstream, others := OK, false
	for i := range r.Checks {
		switch c := &r.Checks[i]; {
		case c.Name == upstreamCheck:
			upstream = c.Result
		case c.Result != OK && c.Result != Warning:
			others = true
		}
	}
	switch {
	case r.Phase == RollBack && r.Checks[0].Result == Refused:
		return "scale belay-controller to 0 replicas, wait until its pods are gone, and check again"
	case upstream == Refused:
		return "disable persistentvolume-attach-detach-controller in the kube-controller-managers that are listed, wait until they have restarted, and check again"
	case upstream == Unconfirmed && !others:
		return "look at every control-plane host (docs/migrate.md); if the controller is disabled on all of them, check again with --" + ConfirmFlag
	}
	return "resolve what is not OK, and check again"
}

// prepared judges kube-controller-manager before the switch, when its controller has to be on.
func (c Check) prepared(found *upstreams, leader string) Check {
	switch {
	case len(found.on) > 0 && len(found.off) > 0:
		c.Result, c.Objects = Warning, found.off
		c.Message = fmt.Sprintf("its attach/detach controller is on in %d of %d pods, so whether volumes are attached depends on which of them leads; %s",
			len(found.on), len(found.on)+len(found.off), leader)
	case len(found.on) > 0:
		c.Result, c.Message, c.Objects = OK, "its attach/detach controller is on", found.on
	case len(found.off) > 0:
		c.Result, c.Message, c.Objects = Warning, "its attach/detach controller is off already", found.off
	default:
		c.Result, c.Objects = Warning, found.forgeable
		c.Message = "it does not run as a pod in kube-system on a control-plane node, so its flags cannot be read: after the switch, you have to confirm that its controller is off; " + leader
	}
	return c
}

// expected judges what is written before the switch: kube-controller-manager, or the program that contains it, is to write.
func (c Check) expected(t *traces, there string) Check {
	c.Result, c.Message = OK, there
	for name := range t.writers {
		if foreign(kube.Writer{Manager: name}) && name != upstreamProgram {
			c.Result = Warning
			c.Message = there + "; if a writer is neither kube-controller-manager nor the program that contains it (k3s), find out what it is"
		}
	}
	return c
}

// checkUpstreamBack describes kube-controller-manager during a rollback. Nothing about it forbids to enable its controller.
func (r *run) checkUpstreamBack(ctx context.Context) Check {
	c := Check{Name: upstreamCheck, Result: OK}
	found, err := findUpstreams(ctx, r.Clients, r.Clock)
	if err != nil {
		return c.unknown(err, "list", "pods")
	}
	c.Objects = slices.Concat(found.on, found.off)
	switch {
	case len(found.on) > 0:
		c.Message = fmt.Sprintf("its attach/detach controller is on in %d of %d pods", len(found.on), len(c.Objects))
	case len(found.off) > 0:
		c.Message = "its attach/detach controller is off"
	default:
		c.Message = "it does not run as a pod in kube-system, so its flags cannot be read"
	}
	return c
}
