package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"path"
	"strconv"
	"strings"

	"github.com/knadh/koanf/parsers/yaml"
	"github.com/spf13/cobra"

	"github.com/safedelivr/safedelivr/client"
)

func (c *cli) templateCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "template",
		Short: "List, show, push, publish and preview templates",
		Long: `Work with the templates of a user: the only one, or the one that init has added, unless --user names another.
A template is a folder with the files subject.txt, body.html, body.txt and template.yaml (sender, category, defaults,
schema, allow_raw), and a folder for each language, like de, with subject.txt, body.html and body.txt.`,
	}
	var user string
	cmd.PersistentFlags().StringVar(&user, "user", "", "owner of the templates, by name")
	of := func(ctx context.Context, o *operator, _ url.Values) (*operator, error) {
		u, err := o.sender(ctx, user)
		return o.as(u.ID), err
	}
	cmd.AddCommand(
		listOf(c, listing{
			call: call{
				op: "listTemplates", use: "list", short: "List templates by name", whose: of,
			},
			head: "NAME\tSTATE\tPUBLISHED\tNEWEST\tUPDATED",
		}, func(_ context.Context, _ *operator, i *client.TemplateInfo) []any {
			var published any = i.Published
			if i.Published == 0 {
				published = ""
			}
			return []any{i.Name, i.State, published, i.Newest, i.UpdatedAt}
		}),
		doing(c, call{op: "archiveTemplate", use: "archive NAME", whose: of, what: "template"},
			func(_ context.Context, _ *operator, _ []string, v *client.TemplateInfo) error {
				fmt.Fprintf(c.out, "%s is archived: batches cannot use it\n", v.Name)
				return nil
			}),
		c.showTemplate(of), c.publishTemplate(of), c.pushTemplates(of), c.previewTemplate(of))
	return cmd
}

func (c *cli) showTemplate(of whose) *cobra.Command {
	cmd := c.withUser(of, "show NAME", "Show the published or else the newest version, and the numbers of all",
		func(ctx context.Context, o *operator, _ url.Values, args []string) error {
			v, err := o.GetTemplate(ctx, args[0], 0)
			if err != nil {
				return orMissing(err, "template", args[0])
			}
			versions, err := first(o.TemplateVersions(ctx, args[0], client.ListOptions{}), pageRows)
			if err != nil {
				return err
			}
			if c.json {
				return c.printJSON(struct {
					client.Template
					Versions []client.TemplateVersion `json:"versions"`
				}{v, versions})
			}
			raw, err := json.MarshalIndent(v, "", "  ")
			if err != nil {
				return err
			}
			fmt.Fprintf(c.out, "%s\n", raw)
			t := c.newTable("VERSION\tCREATED\tPUBLISHED")
			for _, v := range versions {
				t.row(v.Version, v.CreatedAt, v.Published)
			}
			return t.flush()
		})
	return c.withJSON(cmd, jsonObject+", with the numbers of all versions")
}

func (c *cli) publishTemplate(of whose) *cobra.Command {
	return c.withUser(of, "publish NAME VERSION", "Make a version the one that batches use; an older one rolls back",
		func(ctx context.Context, o *operator, _ url.Values, args []string) error {
			number, err := strconv.Atoi(args[1])
			if err != nil {
				return wrongUsage("%s is not the number of a version", args[1])
			}
			info, err := o.PublishTemplate(ctx, args[0], number)
			if err == nil {
				fmt.Fprintf(c.out, "%s: version %d is published\n", info.Name, info.Published)
			}
			return orMissing(err, "template", args[0])
		})
}

// pushTemplates returns the command that stores each folder as a template.
func (c *cli) pushTemplates(of whose) *cobra.Command {
	var publish bool
	cmd := c.withUser(of, "push DIR", "Store each folder of DIR as a new version of the template of its name, unless it is the same",
		func(ctx context.Context, o *operator, _ url.Values, args []string) error {
			dir := os.DirFS(args[0])
			entries, err := fs.ReadDir(dir, ".")
			if err != nil {
				return err
			}
			n := 0
			for _, e := range entries {
				if !e.IsDir() || strings.HasPrefix(e.Name(), ".") {
					continue
				}
				n++
				if err := c.pushTemplate(ctx, o, dir, e.Name(), publish); err != nil {
					return err
				}
			}
			if n == 0 {
				return errors.New("there is no folder with a template in it; see safedelivr template --help")
			}
			return nil
		})
	cmd.Flags().BoolVar(&publish, "publish", false, "publish the versions")
	return cmd
}

// pushTemplate stores a folder as a template.
func (c *cli) pushTemplate(ctx context.Context, o *operator, dir fs.FS, name string, publish bool) error {
	src, err := readTemplate(dir, name)
	if err != nil {
		return err
	}
	in := client.NewTemplateVersion{TemplateSource: src, Publish: publish}
	v, err := o.AddTemplateVersion(ctx, name, in)
	var missing *client.Error
	if errors.As(err, &missing) && missing.Status == http.StatusNotFound {
		v, err = o.CreateTemplate(ctx, client.NewTemplate{Name: name, NewTemplateVersion: in})
	}
	if err != nil {
		return fmt.Errorf("%s: %w", name, templateError(err))
	}
	state := "a draft"
	if v.Published == v.Version {
		state = "published"
	}
	fmt.Fprintf(c.out, "%s: version %d is %s\n", v.Name, v.Version, state)
	return nil
}

// templateError lists the mistakes in a template, each by the part that it is in.
func templateError(err error) error {
	var e *client.Error
	if !errors.As(err, &e) {
		return err
	}
	text := e.Detail
	for _, f := range e.Fields {
		text += "\n  " + strings.TrimPrefix(f.Pointer, "/") + ": " + f.Detail
	}
	return exitWith(codeOfStatus(e.Status), errors.New(text))
}

// readTemplate reads the folder of a template.
func readTemplate(dir fs.FS, name string) (src client.TemplateSource, err error) {
	raw, err := readOptional(dir, path.Join(name, "template.yaml"))
	if err != nil {
		return src, err
	}
	if raw != "" {
		settings, err := yaml.Parser().Unmarshal([]byte(raw))
		if err != nil {
			return src, fmt.Errorf("%s/template.yaml: %w", name, err)
		}
		asJSON, err := json.Marshal(settings)
		if err != nil {
			return src, fmt.Errorf("%s/template.yaml: %w", name, err)
		}
		d := json.NewDecoder(bytes.NewReader(asJSON))
		d.DisallowUnknownFields()
		if err := d.Decode(&src); err != nil {
			return src, fmt.Errorf("%s/template.yaml: %w", name, err)
		}
	}
	if src.TemplateContent, err = readContent(dir, name); err != nil {
		return src, err
	}
	entries, err := fs.ReadDir(dir, name)
	if err != nil {
		return src, err
	}
	for _, e := range entries {
		if !e.IsDir() || strings.HasPrefix(e.Name(), ".") {
			continue
		}
		if src.Languages == nil {
			src.Languages = map[string]client.TemplateContent{}
		}
		if src.Languages[e.Name()], err = readContent(dir, path.Join(name, e.Name())); err != nil {
			return src, err
		}
	}
	return src, nil
}

func readContent(dir fs.FS, folder string) (c client.TemplateContent, err error) {
	for file, to := range map[string]*string{"subject.txt": &c.Subject, "body.html": &c.HTML, "body.txt": &c.Text} {
		if *to, err = readOptional(dir, path.Join(folder, file)); err != nil {
			return c, err
		}
	}
	c.Subject = strings.TrimSpace(c.Subject)
	return c, nil
}

// readOptional reads a file; one that does not exist is empty.
func readOptional(dir fs.FS, name string) (string, error) {
	raw, err := fs.ReadFile(dir, name)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	return string(raw), err
}

func (c *cli) previewTemplate(of whose) *cobra.Command {
	var to client.Recipient
	var vars, language string
	cmd := c.withUser(of, "preview NAME", "Show a template as a recipient gets it, with warnings; NAME@VERSION names a version",
		func(ctx context.Context, o *operator, _ url.Values, args []string) error {
			if err := json.Unmarshal([]byte(vars), &to.Vars); err != nil {
				return fmt.Errorf("--vars is not a JSON object: %w", err)
			}
			var raw []byte
			in := client.NewPreview{Template: args[0], Language: language, To: &to}
			p, err := o.Preview(ctx, in, client.Raw(&raw))
			if err != nil {
				return templateError(err)
			}
			return c.show(raw, func() error {
				for _, h := range p.Headers {
					fmt.Fprintf(c.out, "%s: %s\n", h.Name, h.Value)
				}
				for _, body := range []string{p.Text, p.HTML} {
					if body != "" {
						fmt.Fprintf(c.out, "\n%s\n", body)
					}
				}
				for _, w := range p.Warnings {
					fmt.Fprintf(c.err, "warning: %s: %s\n", w.Code, w.Detail)
				}
				return nil
			})
		})
	f := cmd.Flags()
	f.StringVar(&to.Email, "to", "ann@example.com", "address of the recipient")
	f.StringVar(&to.Name, "name", "Ann", "name of the recipient")
	f.StringVar(&vars, "vars", "{}", "variables of the recipient, as a JSON object")
	f.StringVar(&language, "language", "", "language, like de-AT")
	return c.withJSON(cmd, jsonObject)
}
