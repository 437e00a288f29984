package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	fencingv1 "belay.dev/belay/api/fencing/v1alpha1"
	"belay.dev/belay/internal/fenceagent"
	"belay.dev/belay/internal/recovery"
)

// describeWithin bounds how long an agent may take to describe itself.
const describeWithin = 10 * time.Second

// dialAgent runs the fence agents of some directories, separated by colons.
func dialAgent(directories string) recovery.Dial {
	return func(feed fencingv1.Feed, secret map[string][]byte) (recovery.Switch, error) {
		path, err := fenceagent.Find(directories, feed.Agent)
		if err != nil {
			return nil, dialError(err)
		}
		options := map[string]string{}
		for key, value := range feed.Options {
			options[key] = string(value)
		}
		ctx, cancel := context.WithTimeout(context.Background(), describeWithin)
		defer cancel()
		agent, err := fenceagent.New(ctx, path, options, feed.Plug, secret)
		if err == nil {
			err = fenceagent.Believe(ctx, path, feed.OffTested)
		}
		if err != nil {
			return nil, dialError(err)
		}
		return agentSwitch{agent}, nil
	}
}

// dialError marks an error about the program itself with recovery.ErrNoAgent, and one about what its Off means with recovery.ErrOffUntested.
func dialError(err error) error {
	distrust := (*fenceagent.DistrustError)(nil)
	switch {
	case errors.As(err, new(fenceagent.AgentError)):
		return fmt.Errorf("%w: %w", recovery.ErrNoAgent, err)
	case errors.As(err, &distrust):
		return markedError{err, recovery.ErrOffUntested}
	}
	return err
}

// markedError is an error of fenceagent that is one of recovery's too. Its text says so already.
type markedError struct {
	error

	as error
}

// Unwrap returns both.
func (e markedError) Unwrap() []error { return []error{e.error, e.as} }

// agentSwitch is a fence agent as recovery uses it.
type agentSwitch struct{ *fenceagent.Agent }

// Identity returns the system UUID of the hardware; recovery.ErrNoIdentity if the agent cannot tell, and recovery.ErrRefused if the login was refused.
func (s agentSwitch) Identity(ctx context.Context) (string, error) {
	id, err := s.Agent.Identity(ctx)
	if errors.Is(err, fenceagent.ErrNoIdentity) {
		err = recovery.ErrNoIdentity
	}
	if errors.Is(err, fenceagent.ErrRefused) {
		err = markedError{err, recovery.ErrRefused}
	}
	return id, err
}

var _ recovery.Switch = agentSwitch{}
