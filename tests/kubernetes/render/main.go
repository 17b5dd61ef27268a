// Command render prints the manifests that a folder makes, as kustomize or Helm would.
//
//	render kustomize DIR              what `kubectl kustomize DIR` prints
//	render helm DIR NAME NS [VALUES]  what `helm template NAME DIR --namespace NS -f VALUES` prints
package main

import (
	"fmt"
	"os"
	"sort"
	"strings"

	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "render:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	switch {
	case len(args) == 2 && args[0] == "kustomize":
		return kustomize(args[1])
	case (len(args) == 4 || len(args) == 5) && args[0] == "helm":
		return helm(args[1], args[2], args[3], args[4:])
	}
	return fmt.Errorf("wrong arguments: %q", args)
}

func kustomize(dir string) error {
	made, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), dir)
	if err != nil {
		return err
	}
	yaml, err := made.AsYaml()
	if err != nil {
		return err
	}
	_, err = os.Stdout.Write(yaml)
	return err
}

func helm(dir, name, namespace string, valueFiles []string) error {
	chart, err := loader.Load(dir)
	if err != nil {
		return err
	}
	values := chartutil.Values{}
	for _, file := range valueFiles {
		if values, err = chartutil.ReadValuesFile(file); err != nil {
			return err
		}
	}
	release := chartutil.ReleaseOptions{Name: name, Namespace: namespace, IsInstall: true}
	all, err := chartutil.ToRenderValues(chart, values, release, chartutil.DefaultCapabilities)
	if err != nil {
		return err
	}
	files, err := engine.Render(chart, all)
	if err != nil {
		return err
	}
	var names []string
	for file, text := range files {
		if strings.HasSuffix(file, ".yaml") && strings.TrimSpace(text) != "" {
			names = append(names, file)
		}
	}
	sort.Strings(names)
	for _, file := range names {
		fmt.Printf("---\n# Source: %s\n%s\n", file, files[file])
	}
	return nil
}
