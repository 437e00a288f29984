package main

import (
	"context"
	"debug/buildinfo"
	"fmt"
	"io"
	"path/filepath"
	"regexp"
	"runtime/debug"

	spdxjson "github.com/spdx/tools-golang/json"
	"github.com/spdx/tools-golang/spdx/v2/common"
	spdx "github.com/spdx/tools-golang/spdx/v2/v2_3"
)

const unknown = "NOASSERTION"

// sboms writes an SPDX document for each program: the modules that the linker recorded in it.
func sboms(_ context.Context, o options) error {
	for _, product := range products {
		for _, p := range product.platforms {
			for _, name := range product.programs {
				info, err := buildinfo.ReadFile(filepath.Join(o.built(p), p.program(name)))
				if err != nil {
					return err
				}
				document := o.bill(name+"_"+p.String(), info)
				to := o.path(sbomFile(document.DocumentName))
				if err := writeFile(to, func(out io.Writer) error { return spdxjson.Write(document, out, spdxjson.Indent("  ")) }); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// sbomFile is the name of a program's document.
func sbomFile(of string) string { return of + ".spdx.json" }

// bill is the document of one program.
func (o options) bill(name string, info *debug.BuildInfo) *spdx.Document {
	document := &spdx.Document{
		SPDXVersion: spdx.Version, DataLicense: spdx.DataLicense, SPDXIdentifier: "DOCUMENT", DocumentName: name,
		DocumentNamespace: fmt.Sprintf("https://%s/spdx/%s/%s", module, o.revision, name),
		CreationInfo:      &spdx.CreationInfo{Created: o.created.Format("2006-01-02T15:04:05Z"), Creators: []common.Creator{{CreatorType: "Tool", Creator: "belay-release"}}},
	}
	program := modulePackage(debug.Module{Path: info.Path, Version: string(o.version)})
	program.PackageLicenseDeclared, program.PrimaryPackagePurpose = "Apache-2.0", "APPLICATION"
	document.Packages = append(document.Packages, program)
	relate := func(from common.ElementID, kind string, to common.ElementID) {
		document.Relationships = append(document.Relationships, &spdx.Relationship{
			RefA: common.MakeDocElementID("", string(from)), Relationship: kind, RefB: common.MakeDocElementID("", string(to)),
		})
	}
	relate("DOCUMENT", common.TypeRelationshipDescribe, program.PackageSPDXIdentifier)
	for _, m := range append([]*debug.Module{{Path: "std", Version: info.GoVersion}}, info.Deps...) {
		if m.Replace != nil {
			m = m.Replace
		}
		dependency := modulePackage(*m)
		document.Packages = append(document.Packages, dependency)
		relate(program.PackageSPDXIdentifier, common.TypeRelationshipDependsOn, dependency.PackageSPDXIdentifier)
	}
	return document
}

var notInAnID = regexp.MustCompile(`[^a-zA-Z0-9.-]+`)

func modulePackage(m debug.Module) *spdx.Package {
	return &spdx.Package{
		PackageSPDXIdentifier: common.ElementID("Package-" + notInAnID.ReplaceAllString(m.Path+"-"+m.Version, "-")),
		PackageName:           m.Path, PackageVersion: m.Version, PackageDownloadLocation: unknown,
		PackageLicenseConcluded: unknown, PackageLicenseDeclared: unknown, PackageCopyrightText: unknown,
		PackageExternalReferences: []*spdx.PackageExternalReference{{
			Category: common.CategoryPackageManager, RefType: common.TypePackageManagerPURL, Locator: "pkg:golang/" + m.Path + "@" + m.Version,
		}},
	}
}
