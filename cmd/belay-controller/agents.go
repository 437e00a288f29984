package main

import (
	"errors"

	fencingv1 "belay.dev/belay/api/fencing/v1alpha1"
	"belay.dev/belay/internal/recovery"
)

func dialAgent(string) recovery.Dial {
	return func(fencingv1.Feed, map[string][]byte) (recovery.Switch, error) { return nil, errors.New("no agents") }
}
