package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	slsa "github.com/in-toto/attestation/go/predicates/provenance/v1"
	intoto "github.com/in-toto/attestation/go/v1"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/structpb"
)

const predicateType = "https://slsa.dev/provenance/v1"

// provenance writes a statement in in-toto's form, with SLSA's predicate, for each file of the checksums and for each image.
func provenance(_ context.Context, o options) error {
	sums, err := readSums(o.path(sumsFile))
	if err != nil {
		return err
	}
	if sums[sumsFile], err = digest(o.path(sumsFile)); err != nil {
		return err
	}
	pushed, err := readImages(o.dist)
	if err != nil {
		return err
	}
	for image, of := range pushed {
		sums["belay.dev/"+image] = strings.TrimPrefix(of, "sha256:")
	}
	predicate, err := o.predicate()
	if err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(sums)) {
		statement := &intoto.Statement{
			Type: intoto.StatementTypeUri, PredicateType: predicateType, Predicate: predicate,
			Subject: []*intoto.ResourceDescriptor{{Name: name, Digest: map[string]string{"sha256": sums[name]}}},
		}
		if err := statement.Validate(); err != nil {
			return fmt.Errorf("the statement of %s: %w", name, err)
		}
		raw, err := protojson.Marshal(statement)
		if err != nil {
			return err
		}
		var text bytes.Buffer // protojson spaces its output at random
		if err := json.Indent(&text, raw, "", "  "); err != nil {
			return err
		}
		if err := writeFile(o.path(provenanceFolder, statementOf(name)), func(out io.Writer) error { _, err := out.Write(text.Bytes()); return err }); err != nil {
			return err
		}
	}
	return nil
}

// statementOf is the file name of the statement of a subject.
func statementOf(name string) string { return strings.ReplaceAll(name, "/", "_") + ".intoto.json" }

// predicate says what the release was built of, and by what.
func (o options) predicate() (*structpb.Struct, error) {
	parameters, err := structpb.NewStruct(map[string]any{"version": string(o.version), "target": "make release"})
	if err != nil {
		return nil, err
	}
	tools, err := structpb.NewStruct(map[string]any{"go": runtime.Version(), "SOURCE_DATE_EPOCH": fmt.Sprint(o.created.Unix())})
	if err != nil {
		return nil, err
	}
	source, err := o.source()
	if err != nil {
		return nil, err
	}
	of := []*intoto.ResourceDescriptor{source}
	if o.rootfs != "" {
		inputs, err := rootfsInputs(o.rootfs)
		if err != nil {
			return nil, err
		}
		of = append(of, inputs...)
	}
	p := &slsa.Provenance{
		BuildDefinition: &slsa.BuildDefinition{
			BuildType: "https://" + module + "/release/v1", ExternalParameters: parameters, InternalParameters: tools, ResolvedDependencies: of,
		},
		RunDetails: &slsa.RunDetails{Builder: &slsa.Builder{Id: o.builder}},
	}
	if err := p.Validate(); err != nil {
		return nil, err
	}
	raw, err := protojson.Marshal(p)
	if err != nil {
		return nil, err
	}
	predicate := &structpb.Struct{}
	return predicate, protojson.Unmarshal(raw, predicate)
}

// readImages returns the digests of the images by their names.
func readImages(dist string) (map[string]string, error) {
	raw, err := os.ReadFile(filepath.Join(dist, imagesFile)) //nolint:gosec // of the release
	if err != nil {
		return nil, err
	}
	found := map[string]string{}
	for line := range strings.Lines(string(raw)) {
		name, of, ok := strings.Cut(strings.TrimSpace(line), " ")
		if !ok {
			return nil, fmt.Errorf("the list of images has a line that is not one: %q", line)
		}
		found[name] = of
	}
	return found, nil
}

// rootfsInputs are the files of the fencer's image for each architecture, and the lists of the packages that they come from.
func rootfsInputs(dir string) (inputs []*intoto.ResourceDescriptor, err error) {
	for _, pattern := range []string{"*.tar", "*.packages"} {
		found, err := filepath.Glob(filepath.Join(dir, pattern))
		if err != nil {
			return nil, err
		}
		for _, file := range found {
			sum, err := digest(file)
			if err != nil {
				return nil, err
			}
			inputs = append(inputs, &intoto.ResourceDescriptor{Name: "fencer-rootfs/" + filepath.Base(file), Digest: map[string]string{"sha256": sum}})
		}
	}
	return inputs, nil
}
