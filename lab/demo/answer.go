package demo

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"

	"belay.dev/belay/lab/scenario"
)

// Answer is what kubectl belay printed.
type Answer struct {
	// Command is what a user types.
	Command string `json:"command"`
	Output  string `json:"output"`
	// Status is the exit status: 2 and 3 mean that something is blocked.
	Status int `json:"status"`
}

// questions asks kubectl belay about the moves as they are made.
type questions struct {
	program, kubeconfig string
	answers             []Answer
}

// ask runs the plugin as kubectl does. It is an error if it has no answer.
func (q *questions) ask(ctx context.Context, args ...string) error {
	answer := Answer{Command: "kubectl belay " + strings.Join(args, " ")}
	command := exec.CommandContext(ctx, q.program, append(args, "--namespace", scenario.Namespace)...)
	command.Env = append(os.Environ(), "KUBECONFIG="+q.kubeconfig) // so that the commands that it prints have no path of the lab
	out, err := command.Output()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) && exit.ExitCode() > 1 {
		answer.Status = exit.ExitCode()
	} else if exit != nil {
		return fmt.Errorf("run %s: %w: %s", answer.Command, err, exit.Stderr)
	} else if err != nil {
		return fmt.Errorf("run %s: %w", answer.Command, err)
	}
	answer.Output = string(out)
	q.answers = append(q.answers, answer)
	return nil
}

func (q *questions) refuse(ctx context.Context, s *scenario.Scene) (Step, error) {
	refused, err := s.Refuse(ctx, func(ctx context.Context, pod string) error { return q.ask(ctx, "explain", "pod/"+pod) })
	return Step{Refused: refused}, err
}

func (q *questions) cutPower(ctx context.Context, s *scenario.Scene) (Step, error) {
	move, err := s.PowerCut(ctx, titleCut)
	if err != nil {
		return Step{}, err
	}
	return Step{Move: move}, q.ask(ctx, "timeline", "pod/"+scenario.WriterPod)
}
