package main

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"go.yaml.in/yaml/v3"
)

// A manifest is what the test looks at of one.
type manifest struct {
	Kind string
	Spec struct {
		Template    podTemplate
		JobTemplate struct {
			Spec struct{ Template podTemplate }
		} `yaml:"jobTemplate"`
	}
}

type podTemplate struct {
	Spec struct {
		Grace      int `yaml:"terminationGracePeriodSeconds"`
		Containers []struct {
			Name, Image    string
			Command        []string
			ReadinessProbe *struct {
				HTTPGet struct{ Path, Port string } `yaml:"httpGet"`
			} `yaml:"readinessProbe"`
			Ports []struct {
				Name string
				Port int `yaml:"containerPort"`
			}
			Resources struct{ Limits map[string]string }
		}
	}
}

// TestManifests reads the manifests of examples/kubernetes. Their commands are command lines of
// distsync, their probes have a port, and no pod has a shorter grace period than Kubernetes'
// default.
func TestManifests(t *testing.T) {
	paths, err := filepath.Glob("../../examples/kubernetes/*.yaml")
	if err != nil || len(paths) < 5 {
		t.Fatalf("manifests %q, %v", paths, err)
	}
	commands := 0
	for _, path := range paths {
		t.Run(filepath.Base(path), func(t *testing.T) {
			f, err := os.Open(path)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			for d := yaml.NewDecoder(f); ; {
				var m manifest
				if err := d.Decode(&m); errors.Is(err, io.EOF) {
					return
				} else if err != nil {
					t.Fatal(err)
				}
				pod := m.Spec.Template
				switch m.Kind {
				case "Deployment":
				case "CronJob":
					pod = m.Spec.JobTemplate.Spec.Template
				case "Service":
					continue
				default:
					t.Fatalf("a %s, which the test doesn't know", m.Kind)
				}
				if pod.Spec.Grace < 30 || len(pod.Spec.Containers) == 0 {
					t.Errorf("%s: %+v", m.Kind, pod.Spec)
				}
				for _, c := range pod.Spec.Containers {
					if _, limited := c.Resources.Limits["cpu"]; limited {
						t.Errorf("%s has a limit of CPU", c.Name)
					}
					if probe := c.ReadinessProbe; probe != nil {
						ports := slices.ContainsFunc(c.Ports, func(p struct {
							Name string
							Port int `yaml:"containerPort"`
						}) bool {
							return p.Name == probe.HTTPGet.Port && p.Port > 0
						})
						if !ports || probe.HTTPGet.Path != "/ready" {
							t.Errorf("%s is asked at %+v", c.Name, probe.HTTPGet)
						}
					}
					if len(c.Command) > 0 {
						commands++
						checkCommand(t, c.Command)
					}
				}
			}
		})
	}
	if commands < 2 {
		t.Errorf("%d commands were looked at", commands)
	}
}

// checkCommand checks a command line of distsync, but runs nothing.
func checkCommand(t *testing.T, command []string) {
	t.Helper()
	if command[0] != "distsync" {
		t.Fatalf("%q is not ours", command)
	}
	cmd, args, err := newRoot().Find(command[1:])
	if err != nil || cmd.Name() != "run" {
		t.Fatalf("%q: %v, %v", command, cmd.Name(), err)
	}
	if err := cmd.ParseFlags(args); err != nil {
		t.Errorf("%q: %v", command, err)
	}
	if dash := cmd.ArgsLenAtDash(); dash != 1 || cmd.Flags().NArg() < 2 {
		t.Errorf("%q: no name and command", command)
	}
	if err := cmd.ValidateArgs(cmd.Flags().Args()); err != nil {
		t.Errorf("%q: %v", command, err)
	}
}
