package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	intoto "github.com/in-toto/attestation/go/v1"
	"google.golang.org/protobuf/encoding/protojson"
)

var errDirty = errors.New("there are uncommitted changes: commit them, or rehearse with -allow-dirty (ALLOW_DIRTY=1 for make)")

// repository is the source of every release.
const repository = "git+https://" + module

// uncommitted says whether the files of a folder are not those of the commit. Without -allow-dirty that is an error. Files that git does not know count:
// Go compiles them too.
func (o options) uncommitted(ctx context.Context, folder string) (bool, error) {
	head, err := gitOutput(ctx, folder, "rev-parse", "HEAD")
	if err != nil {
		return false, err
	}
	if head != o.revision {
		return false, fmt.Errorf("the commit is %s, and -revision is %s", head, o.revision)
	}
	changed, err := gitOutput(ctx, folder, "status", "--porcelain")
	switch {
	case err != nil:
		return false, err
	case changed == "" && !o.version.dirty():
		return false, nil
	case !o.allowDirty:
		return false, fmt.Errorf("%w\n%s", errDirty, changed)
	}
	fmt.Printf("NOT A RELEASE: there are uncommitted changes\n%s\n", changed)
	return true, nil
}

func gitOutput(ctx context.Context, folder string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "git", args...)
	cmd.Dir, cmd.Stderr = folder, os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("git %s: %w", strings.Join(args, " "), err)
	}
	return string(bytes.TrimSpace(out)), nil
}

// source is what the provenance says of the source. Changes that no commit has are the source of a rehearsal only, and no commit is named for them.
func (o options) source() (*intoto.ResourceDescriptor, error) {
	switch {
	case !o.dirty && !o.version.dirty():
		return &intoto.ResourceDescriptor{Uri: repository, Digest: map[string]string{"gitCommit": o.revision}}, nil
	case !o.allowDirty:
		return nil, errDirty
	}
	return &intoto.ResourceDescriptor{Uri: repository, Name: "uncommitted changes"}, nil
}

// refuseDirty is an error if a statement of the release names no commit. Signing comes after building, and knows only what is in the folder.
func (o options) refuseDirty() error {
	if o.allowDirty {
		return nil
	}
	statements, err := filepath.Glob(o.path(provenanceFolder, "*"))
	if err != nil {
		return err
	}
	if len(statements) == 0 {
		return errors.New("the release has no provenance")
	}
	for _, path := range statements {
		raw, err := os.ReadFile(path) //nolint:gosec // of the release
		if err != nil {
			return err
		}
		var statement intoto.Statement
		if err := protojson.Unmarshal(raw, &statement); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		if !namesCommit(&statement) {
			return fmt.Errorf("%s names no commit: %w", path, errDirty)
		}
	}
	return nil
}

// namesCommit says whether a statement is about the files of a commit.
func namesCommit(s *intoto.Statement) bool {
	definition := s.GetPredicate().GetFields()["buildDefinition"].GetStructValue()
	for _, of := range definition.GetFields()["resolvedDependencies"].GetListValue().GetValues() {
		fields := of.GetStructValue().GetFields()
		if fields["uri"].GetStringValue() == repository {
			return fields["digest"].GetStructValue().GetFields()["gitCommit"].GetStringValue() != ""
		}
	}
	return false
}
